"""From an environment's id to a vector environment that can be trained in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, PalaestraError, SettingsError, UnknownNameError, suggest
from palaestra.core.plugins import find_reference, import_code, is_reference
from palaestra.core.user_code import describe_error, describe_location
from palaestra.envs.problems import resolve_task
from palaestra.envs.token.base import TokenVectorEnv
from palaestra.envs.token.contract import TokenEnvContract
from palaestra.envs.token.single import TokenEnv
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.envs.wrappers.checked import CheckedVectorEnv
from palaestra.envs.wrappers.plain_tokens import PlainTokenVectorEnv, is_plain_token_env
from palaestra.envs.wrappers.slots import SlotVectorEnv
from palaestra.tasks.base import check_skills


def get_spec(env_id: str) -> Any:
    """Return the spec of an environment.

    Arguments:
        env_id: a registered id; `module:id`, whose module registers it, as in Gymnasium; or the class of an
            environment as `module:Class` or `file.py:Class`. Modules are also searched in the current folder.

    Raises:
        UnknownNameError: nothing has that id; suggests the nearest that does.
        EnvError: the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            kind: Any = find_reference(env_id) if is_reference(env_id) else import_code(module)
        except Exception as error:  # The user's code may raise anything.
            raise EnvError(f"cannot import '{module}', which is to register {name}: {describe_error(error)}") from error
        if isinstance(kind, type) and issubclass(kind, VectorEnv):
            return EnvSpec(name, vector_entry_point=kind)  # type: ignore[arg-type]
        if isinstance(kind, type) and issubclass(kind, gymnasium.Env):
            return EnvSpec(name, entry_point=kind)  # type: ignore[arg-type]
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.DeprecatedEnv, gymnasium.error.VersionNotFound, gymnasium.error.NamespaceNotFound) as error:
        # Gymnasium knows which version replaced an old one, and that a package is missing.
        raise EnvError(f"unknown environment '{env_id}': {_first_line(error)}") from None
    except gymnasium.error.Error:
        raise UnknownNameError("environment", env_id, _known(module)) from None


def _known(module: str) -> list[str]:
    """The ids that somebody may have meant: those that a module registers, or the newest version of each."""
    specs = {
        name: spec for name, spec in gymnasium.registry.items() if not name.startswith(("phys2d", "tabular", "GymV"))
    }
    if module:
        entries = {name: spec.entry_point for name, spec in specs.items()}
        own = [n for n, e in entries.items() if str(getattr(e, "__module__", e)).partition(":")[0].startswith(module)]
        if own:
            return own
    newest = {
        (spec.namespace, spec.name): name for name, spec in sorted(specs.items(), key=lambda one: one[1].version or 0)
    }
    return list(newest.values())


def detect_kind(env_id: str, options: Mapping[str, Any]) -> Literal["token", "turn", "control"]:
    """What one action of the environment is: a token, a message, or classic; decided without loading a model."""
    spec = get_spec(env_id)
    if _token_class(spec) is not None:
        return "token"
    if _turn_class(spec) is not None:
        return "turn"
    env = _made(env_id, options)
    try:
        if isinstance(env.unwrapped, TurnEnv):
            return "turn"
        return "token" if isinstance(env.unwrapped, TokenEnv) or is_plain_token_env(env) else "control"
    finally:
        env.close()


def check_options(env_id: str, options: Mapping[str, Any]) -> None:
    """Raise for an option that a language model's environment does not take, or an unknown task or skill among them.

    Nothing is made and no model loaded for this.
    """
    spec = get_spec(env_id)
    known: list[str] = []
    for entry in (spec.entry_point, spec.vector_entry_point):
        kind = _loaded(spec, entry)
        if kind is None:
            continue
        if not isinstance(kind, type) or not issubclass(kind, (TokenEnv, TokenVectorEnv, TurnEnv, TurnVectorEnv)):
            return
        known += _parameters(kind)
    if not known:
        return
    for option in options:
        if option not in known:
            raise SettingsError(
                f"setting 'env_options': {env_id} has no option '{option}'; {suggest(option, dict.fromkeys(known))}"
            )
    given = {**spec.kwargs, **options}
    if isinstance(given.get("task"), str) and "task_options" in known:
        task = resolve_task(given["task"], given.get("task_options"))
        skills = given.get("skills", ())
        check_skills(task, [skills] if isinstance(skills, str) else skills)


def is_token_env(env_id: str, options: Mapping[str, Any]) -> bool:
    """Whether actions of the environment are tokens; decided without loading a model."""
    return detect_kind(env_id, options) == "token"


def make_token_env(env_id: str, num_envs: int, options: Mapping[str, Any], **own: Any) -> TokenEnvContract:
    """A token environment with `num_envs` slots.

    Arguments:
        options: of the environment itself; they go before `own`.
        own: `tokenizer`, `max_tokens`, `context`, `group_size`, `failures`, `end_ids`.
    """
    spec = get_spec(env_id)
    kind = _token_class(spec)
    if kind is not None and issubclass(kind, TokenEnv) and kind.__init__ is TokenEnv.__init__:
        kind = kind.vector_class
    if kind is not None and issubclass(kind, TokenVectorEnv):
        env: TokenEnvContract = _call(env_id, kind, {**spec.kwargs, **own, **options}, num_envs=num_envs)
        return env
    if kind is not None or not isinstance(_loaded(spec, spec.entry_point), type):
        # The arguments of its vector environment are known to the single one alone.
        made = _made(env_id, {**({} if kind is None else _taken(kind, own)), **options})
        single = made.unwrapped
        if isinstance(single, TokenEnv):
            return single.in_slots(num_envs, **{name: options.get(name, own[name]) for name in own})
        made.close()
    own.pop("end_ids", None)  # A plain environment says itself when an episode is over.
    return PlainTokenVectorEnv(lambda: _made(env_id, options), num_envs, **own)


def make_turn_env(
    env_id: str, num_envs: int, options: Mapping[str, Any], *, held_out: bool = False, **own: Any
) -> TurnVectorEnv:
    """A turn environment with `num_envs` slots: its native vector form where it has one.

    Arguments:
        options: of the environment itself.
        held_out: make it of the episodes that nobody learns from (see `TurnEnv.held_out`).
        own: `group_size`, `autoreset`, `failures`.
    """
    spec = get_spec(env_id)
    single, several = _loaded(spec, spec.entry_point), _loaded(spec, spec.vector_entry_point)
    if held_out and isinstance(single, type) and issubclass(single, TurnEnv):
        options = {**options, **single.held_out}
    if isinstance(several, type) and issubclass(several, TurnVectorEnv):
        made: TurnVectorEnv = _call(env_id, several, {**spec.kwargs, **options}, num_envs=num_envs, **own)
        return made
    return TurnVectorEnv(lambda: _made(env_id, options), num_envs, **own)


def turn_options(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a turn environment is learned from with: the user's, and what `TurnEnv.learned_from` adds to them.

    Raises:
        SettingsError: they make the very episodes that are held out.
    """
    spec = get_spec(env_id)
    single = _loaded(spec, spec.entry_point)
    if not isinstance(single, type) or not issubclass(single, TurnEnv):
        return dict(options)
    more = {name: value for name, value in single.learned_from.items() if name not in {**spec.kwargs, **options}}
    found = {**options, **more}
    defaults = {name: p.default for name, p in inspect.signature(single).parameters.items()}
    effective = {**defaults, **spec.kwargs, **found}
    held_out = single.held_out
    if held_out and all(effective.get(name) == value for name, value in held_out.items()):
        told = ", ".join(f"{name}={value}" for name, value in held_out.items())
        raise SettingsError(
            f"setting 'env_options': {env_id} with {told} has the episodes that its results are measured on; learn from "
            f"others, by another value of {' or '.join(held_out)}"
        )
    return found


def make_control_env(
    env_id: str, num_envs: int, options: Mapping[str, Any], own_seeds: bool = False
) -> VectorEnv[Any, Any, Any]:
    """A classic environment with `num_envs` slots: its native vector form where it has one.

    Arguments:
        own_seeds: every slot must take a seed of its own, which native forms do not.
    """
    spec = get_spec(env_id)
    if spec.vector_entry_point is not None and not own_seeds:
        try:
            native = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **options)
            return CheckedVectorEnv(native)
        except (TypeError, gymnasium.error.Error):
            pass  # The native form may know fewer options than the environment: then slots serve.
        except Exception as error:
            raise EnvError(f"cannot make {env_id}: {describe_error(error)}") from error
    return SlotVectorEnv(lambda: _made(env_id, options), num_envs, env_id)


def _made(env_id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    env: gymnasium.Env[Any, Any] = _call(env_id, gymnasium.make, options, id=get_spec(env_id), disable_env_checker=True)
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            kind = type(env.unwrapped)
            raise EnvError(
                f"{kind.__name__} has {short_repr(space)} as its {name}; expected a space of Gymnasium"
                f"{describe_location(kind.__init__)}"
            )
    return env


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _call(env_id: str, make: Callable[..., Any], options: Mapping[str, Any], **own: Any) -> Any:
    try:
        return make(**options, **own)
    except TypeError as error:
        # Gymnasium repeats all arguments in its message; the cause is what was said first.
        said = str(error.__cause__ if isinstance(error.__cause__, TypeError) else error)
        if "argument" in said:
            raise EnvError(f"{env_id} does not take these options: {said.splitlines()[0]}") from error
        if not options:
            raise EnvError(f"cannot make {env_id}: {describe_error(error)}") from error
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise EnvError(f"{env_id} cannot be made with {given[:200]}: {said.splitlines()[0]}") from error
    except PalaestraError:
        raise
    except Exception as error:  # An environment is a program of somebody else's: it may raise anything.
        raise EnvError(f"cannot make {env_id}: {describe_error(error)}") from error


def _taken(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that making a `kind` takes."""
    parameters = inspect.signature(kind).parameters
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in given.items() if everything or name in parameters}


def _parameters(kind: type) -> list[str]:
    """The arguments that making a `kind` takes, those that it hands on to its base classes included.

    None are known of a class that hands them on to something else.
    """
    found: list[str] = []
    for one in kind.__mro__:
        if "__init__" not in vars(one):
            continue
        parameters = list(inspect.signature(vars(one)["__init__"]).parameters.values())[1:]
        found += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return found
    return []


def _loaded(spec: Any, entry: Any) -> Any:
    """What an entry point stands for."""
    if not isinstance(entry, str):
        return entry
    from gymnasium.envs.registration import load_env_creator

    try:
        return load_env_creator(entry)
    except (ImportError, AttributeError, ValueError, gymnasium.error.Error) as error:
        raise EnvError(f"cannot load {spec.id} from {entry}: {describe_error(error)}") from error


def _token_class(spec: Any) -> Any:
    """The token environment behind a spec, of many slots or of one, or `None`."""
    return _class_among(spec, (TokenVectorEnv, TokenEnv))


def _turn_class(spec: Any) -> Any:
    """The turn environment behind a spec, of many slots or of one, or `None`."""
    return _class_among(spec, (TurnVectorEnv, TurnEnv))


def _class_among(spec: Any, kinds: tuple[type, ...]) -> Any:
    for entry in (spec.vector_entry_point, spec.entry_point):
        found = _loaded(spec, entry)
        if isinstance(found, type) and issubclass(found, kinds):
            return found
    return None
