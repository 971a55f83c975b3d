"""Push an exported folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from palaestra.core.errors import RunError

Kind = Literal["dataset", "model"]


def check_push(repository: str) -> None:
    """Raise before any work if a push cannot succeed.

    Raises:
        RunError: the name is not that of a repository, or there is no token.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"expected --push owner/name; got '{repository}': {reason}") from error
    if not get_token():
        raise RunError("no Hugging Face token; set HF_TOKEN, or log in with: hf auth login")


def push_folder(folder: Path, repository: str, kind: Kind, *, private: bool = False) -> str:
    """Upload a folder to a repository, which is created if needed. Returns its address.

    Raises:
        RunError: there is no token, the hub cannot be reached, or it rejects the upload.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # Of the HTTP client that this version of the hub's library uses.

    check_push(repository)
    api = HfApi()
    try:
        url = api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id, folder_path=folder, repo_type=kind, commit_message="Export from Palaestra"
        )
    except (HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"the hub did not accept {repository}: {reason}; the folder is {folder}") from error
    return str(url)
