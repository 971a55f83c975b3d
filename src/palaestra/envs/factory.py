"""Make vector environments for training from environment ids."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Literal, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from palaestra.core.errors import EnvError, PalaestraError, SettingsError, UnknownNameError, suggest
from palaestra.core.registry import (
    check_signature,
    describe_error,
    find_reference,
    import_code,
    is_reference,
    make_reference,
)
from palaestra.core.settings import short_repr
from palaestra.envs import PREFIXES
from palaestra.envs.base import GymEnv, GymSpace, GymVectorEnv, Info, Options, resolve_task
from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.token.contract import TokenEnvContract
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.envs.wrappers.plain_tokens import PlainTokenVectorEnv, is_plain_token_env
from palaestra.envs.wrappers.slots import CheckedVectorEnv, SlotVectorEnv, read_bootstrap
from palaestra.tasks.base import check_skills

T = TypeVar("T")
_SUPPLIED = ("num_envs", "tokenizer", "max_tokens", "context", "end_ids", "group_size", "failures", "autoreset")
"""The arguments that `make_token_env` and `make_turn_env` pass to vector environments."""


def get_spec(env_id: str) -> EnvSpec:
    """Return the spec of an environment.

    Arguments:
        env_id: a registered id; `module:id`, whose module registers it, as in Gymnasium; the class of an environment as
            `module:Class` or `file.py:Class`; or an environment of another package with one of `PREFIXES`, for example
            `text:FrozenLake-v1`. Modules are also searched in the current folder.

    Raises:
        UnknownNameError: no environment has that id; the message suggests the nearest one.
        EnvError: the module cannot be imported.
    """
    prefix, _, rest = env_id.partition(":")
    if rest and prefix in PREFIXES:
        adapter = gymnasium.spec(PREFIXES[prefix])
        return replace(adapter, kwargs={**adapter.kwargs, "env_id": rest})
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            kind: Any = find_reference(env_id) if is_reference(env_id) else import_code(module)
        except (Exception, SystemExit) as error:  # The user's code may raise anything.
            raise EnvError(
                f"cannot import '{module}', which should register {name}: {describe_error(error)}"
            ) from error
        if isinstance(kind, type) and issubclass(kind, VectorEnv):
            return EnvSpec(name, vector_entry_point=kind)  # type: ignore[arg-type]
        if isinstance(kind, type) and issubclass(kind, gymnasium.Env):
            return EnvSpec(name, entry_point=kind)  # type: ignore[arg-type]
        if is_reference(env_id) and inspect.isfunction(kind):
            return EnvSpec(name, entry_point=kind)
        if kind is None and module.endswith(".py"):
            raise UnknownNameError(f"environment of {module}", name, _list_envs(module))
    elif env_id.endswith(".py"):
        raise EnvError(f"{env_id} is a file; name its class: {env_id}:NAME")
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.DeprecatedEnv, gymnasium.error.VersionNotFound, gymnasium.error.NamespaceNotFound) as error:
        # Gymnasium's message names the new version or the missing package.
        raise EnvError(f"unknown environment '{env_id}': {str(error).strip().splitlines()[0]}") from None
    except gymnasium.error.Error:
        versions = sorted(gymnasium.registry.values(), key=lambda spec: spec.version or 0)
        newest = {(spec.namespace, spec.name): spec.id for spec in versions}
        raise UnknownNameError("environment", env_id, list(newest.values())) from None


def _list_envs(file: str) -> list[str]:
    """The classes of environments that a file defines."""
    code = import_code(file)
    kinds = {name: kind for name, kind in vars(code).items() if isinstance(kind, type)}
    return [
        name
        for name, kind in kinds.items()
        if issubclass(kind, gymnasium.Env | VectorEnv) and kind.__module__ == code.__name__
    ]


def describe_env(env: object) -> tuple[str, Info]:
    """Return the id and the options of an environment that is given as a class, a function that makes one, or an instance.

    An instance of a registered environment is made anew from its spec for every slot; any other instance is copied.

    Raises:
        EnvError: it is none of these, or the instance cannot be copied.
    """
    if isinstance(env, type) or (callable(env) and not isinstance(env, gymnasium.Env | VectorEnv)):
        return make_reference(env), {}
    if not isinstance(env, gymnasium.Env | VectorEnv):
        raise EnvError(f"env must be an id, a class, a function or an environment; got {short_repr(env)}")
    spec = env.spec
    registered = None if spec is None or spec.additional_wrappers else gymnasium.registry.get(spec.id)
    # Another limit of steps is no argument of the environment: such an instance is copied.
    keeps_limit = spec is not None and registered is not None and spec.max_episode_steps == registered.max_episode_steps
    if spec is not None and keeps_limit and _is_plain(spec.kwargs):
        return spec.id, dict(spec.kwargs)
    if isinstance(env, VectorEnv):
        raise EnvError(
            f"a vector environment is made for the run; pass the class {type(env.unwrapped).__name__} or its id"
        )
    try:
        copy.deepcopy(env)
    except Exception as error:  # The user's environment may raise anything.
        raise EnvError(
            f"the environment {env} cannot be copied for each slot: {describe_error(error)}; pass its class, or a function "
            "that makes one"
        ) from None
    return make_reference(lambda: copy.deepcopy(env), name=type(env.unwrapped).__name__), {}


def _is_plain(options: Options) -> bool:
    """Whether JSON can hold the options."""
    try:
        return bool(json.loads(json.dumps(options)) == options)
    except (TypeError, ValueError):
        return False


def detect_kind(env_id: str, options: Options) -> Literal["token", "turn", "control"]:
    """Return the kind of the environment's actions: tokens, turns or classic actions. Loads no model."""
    spec = get_spec(env_id)
    if _find_class(spec, TokenVectorEnv, TokenEnv) is not None:
        return "token"
    if _find_class(spec, TurnVectorEnv, TurnEnv) is not None:
        return "turn"
    env = _make_one(env_id, options)
    try:
        if isinstance(env.unwrapped, TurnEnv | TurnVectorEnv):
            return "turn"
        is_token = isinstance(env.unwrapped, TokenEnv | TokenEnvContract) or is_plain_token_env(env)
        return "token" if is_token else "control"
    finally:
        env.close()


def get_single_spaces(env_id: str, options: Options) -> tuple[GymSpace, GymSpace]:
    """Return the observation and action space of a single environment."""
    env = _make_one(env_id, options)
    try:
        return _get_spaces(env)
    finally:
        env.close()


def check_options(env_id: str, options: Options, settings: Collection[str] = ()) -> None:
    """Raise for options that a language-model environment cannot be made with. Loads no model.

    A turn environment is made once, so that wrong values and names of other packages raise here as well.

    Arguments:
        settings: the options that are settings of their own, for the message.
    """
    spec = get_spec(env_id)
    names: dict[str, Any] = {}
    for entry in (spec.entry_point, spec.vector_entry_point):
        kind = _load_entry(spec, entry)
        if kind is None:
            continue
        if not isinstance(kind, type) or not issubclass(kind, (TokenEnv, TokenVectorEnv, TurnEnv, TurnVectorEnv)):
            return
        names |= _list_parameters(kind)
    if not names:
        return
    for option in options:
        if option not in names:
            if option in settings:
                raise SettingsError(f"setting '{option}' has no effect on {env_id}, which has no such option")
            raise SettingsError(f"setting 'env_kwargs': {env_id} has no option '{option}'; {suggest(option, names)}")
    given = {**names, **spec.kwargs, **options}
    for option in (name for name, value in given.items() if value is inspect.Parameter.empty and name not in _SUPPLIED):
        setting = option if option in settings else "env_kwargs"
        advice = "".join(
            f"; or use {prefix}:ID as the environment" for prefix in PREFIXES if PREFIXES[prefix] == env_id
        )
        raise SettingsError(f"setting '{setting}': {env_id} needs the option '{option}'{advice}")
    check_data = getattr(kind, "check_data", None)
    if check_data is not None and isinstance(given["prompts"], str):
        check_data(given["prompts"], given["task_kwargs"])
    if isinstance(given.get("task"), str) and "task_kwargs" in names:
        task = resolve_task(given["task"], given.get("task_kwargs"))
        skills = given.get("skills", ())
        check_skills(task, [skills] if isinstance(skills, str) else skills)
    single = _load_entry(spec, spec.entry_point)
    if isinstance(single, type) and issubclass(single, TurnEnv):
        make_single_turn_env(env_id, options).close()


def make_token_env(env_id: str, num_envs: int, options: Options, **own: Any) -> TokenEnvContract:
    """Make a token environment with `num_envs` slots.

    Arguments:
        options: arguments of the environment; they take precedence over `own`.
        own: `tokenizer`, `max_tokens`, `context`, `group_size`, `failures`, `end_ids`.
    """
    spec = get_spec(env_id)
    kind, single_class = _find_class(spec, TokenVectorEnv, TokenEnv), _load_entry(spec, spec.entry_point)
    if kind is not None and issubclass(kind, TokenEnv) and kind.__init__ is TokenEnv.__init__:
        kind = kind.vector_class
    if spec.entry_point is None and kind is None:
        kind = _load_entry(spec, spec.vector_entry_point)  # A function that makes a token environment.
    if spec.entry_point is None or (kind is not None and issubclass(kind, TokenVectorEnv)):
        native: TokenEnvContract = _call(env_id, kind, {**spec.kwargs, **own, **options}, num_envs=num_envs)
        # The single environment takes this attribute from the vector environment, unless its class defines it.
        native.bootstrap_truncated = getattr(single_class, "bootstrap_truncated", native.bootstrap_truncated)
        return native
    if kind is not None or not isinstance(single_class, type):
        # The arguments of the vector environment are available only from the single environment.
        env = _make_single(env_id, {**({} if kind is None else _select_accepted(kind, own)), **options})
        single = env.unwrapped
        if isinstance(single, TokenEnv):
            return single.in_slots(num_envs, **{name: options.get(name, own[name]) for name in own})
        env.close()
    own.pop("end_ids", None)  # A plain environment decides itself when an episode ends.
    return PlainTokenVectorEnv(lambda: _make_single(env_id, options), num_envs, **own)


def make_turn_env(env_id: str, num_envs: int, options: Options, *, held_out: bool = False, **own: Any) -> TurnVectorEnv:
    """Make a turn environment with `num_envs` slots. Uses its native vector environment if it has one.

    Arguments:
        options: arguments of the environment.
        held_out: use the held-out episodes (see `TurnEnv.held_out`).
        own: `group_size`, `autoreset`, `failures`.
    """
    spec = get_spec(env_id)
    single, vector = _load_entry(spec, spec.entry_point), _load_entry(spec, spec.vector_entry_point)
    if held_out and isinstance(single, type) and issubclass(single, TurnEnv):
        options = {**options, **single.held_out}
    if single is None or (isinstance(vector, type) and issubclass(vector, TurnVectorEnv)):
        env: TurnVectorEnv = _call(env_id, vector, {**spec.kwargs, **options}, num_envs=num_envs, **own)
        return env
    return TurnVectorEnv(lambda: _make_single(env_id, options), num_envs, **own)


def make_single_turn_env(env_id: str, options: Options) -> TurnEnv:
    """Make one turn environment, without Gymnasium's wrappers.

    Raises:
        EnvError: it cannot be made, or it is not a turn environment.
    """
    env = _make_single(env_id, options)
    if not isinstance(env.unwrapped, TurnEnv):
        env.close()
        raise EnvError(f"{env_id} is not a turn environment; for text or discrete spaces use text:{env_id}")
    return env.unwrapped


def turn_options(env_id: str, options: Options) -> Info:
    """The training options of a turn environment: the user's, with defaults from `TurnEnv.learned_from`.

    Raises:
        SettingsError: they select the held-out episodes.
    """
    spec = get_spec(env_id)
    single = _load_entry(spec, spec.entry_point)
    if not isinstance(single, type) or not issubclass(single, TurnEnv):
        return dict(options)
    more = {name: value for name, value in single.learned_from.items() if name not in {**spec.kwargs, **options}}
    training = {**options, **more}
    defaults = {name: p.default for name, p in inspect.signature(single).parameters.items()}
    effective = {**defaults, **spec.kwargs, **training}
    held_out = single.held_out
    if held_out and all(effective.get(name) == value for name, value in held_out.items()):
        values = ", ".join(f"{name}={value}" for name, value in held_out.items())
        raise SettingsError(
            f"setting 'env_kwargs': {env_id} with {values} selects the held-out episodes, which are reserved for "
            f"evaluation; set another value of {' or '.join(held_out)} for training"
        )
    return training


def make_control_env(env_id: str, num_envs: int, options: Options, own_seeds: bool = False) -> GymVectorEnv:
    """Make a classic environment with `num_envs` slots. Uses its native vector environment if it has one with the same spaces.

    Arguments:
        own_seeds: whether every slot needs its own seed, which most native vector environments do not support. They are
            then used only if there is no single environment.
    """
    spec = get_spec(env_id)
    if _is_vector_only(spec):
        return CheckedVectorEnv(_make_native(env_id, num_envs, options), env_id)
    if spec.vector_entry_point is not None and not own_seeds:
        single = _make_single(env_id, options)
        single.close()
        try:
            native = _make_native(env_id, num_envs, options)
        except EnvError as error:
            if not isinstance(error.__cause__, TypeError | gymnasium.error.Error):
                raise  # Otherwise it may have fewer options; use single environments then.
        else:
            # Evaluations use single environments. That of Atari also preprocesses images, which a single one does not.
            if _get_spaces(native) == _get_spaces(single):
                return CheckedVectorEnv(native, env_id, read_bootstrap(single, True))
            native.close()
    return SlotVectorEnv(lambda: _make_single(env_id, options), num_envs, env_id)


def _get_spaces(env: GymEnv | GymVectorEnv) -> tuple[GymSpace, GymSpace]:
    """The observation and action space of a single environment, or of one slot of a vector environment."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _make_one(env_id: str, options: Options) -> GymEnv | GymVectorEnv:
    """Make a single environment, or a vector environment of one slot if only that can be trained in."""
    return _make_native(env_id, 1, options) if _is_vector_only(get_spec(env_id)) else _make_single(env_id, options)


def _is_vector_only(spec: EnvSpec) -> bool:
    """Whether policies are trained in the vector environment only, because there is no single one or it has other spaces."""
    return spec.entry_point is None or getattr(_load_entry(spec, spec.entry_point), "trained_as_vector", False)


def _make_native(env_id: str, num_envs: int, options: Options) -> GymVectorEnv:
    own = {"num_envs": num_envs, "vectorization_mode": "vector_entry_point"}
    return _call(env_id, gymnasium.make_vec, options, id=get_spec(env_id), **own)


def _make_single(env_id: str, options: Options) -> GymEnv:
    env = _call(env_id, gymnasium.make, options, id=get_spec(env_id), disable_env_checker=True)
    own, kind = env.unwrapped, type(env.unwrapped).__name__
    if missing := [name for name in ("observation_space", "action_space") if getattr(own, name, None) is None]:
        raise EnvError(f"{env_id} is not a Gymnasium environment: {kind} has no '{missing[0]}'")
    check_signature(own.reset, f"{kind}.reset", keywords=("seed", "options"), error=EnvError)
    check_signature(own.step, f"{kind}.step", "action", error=EnvError)
    return env


def _call(env_id: str, make: Callable[..., T], options: Options, **own: Any) -> T:
    try:
        return make(**options, **own)
    except (PalaestraError, KeyboardInterrupt):
        raise
    except BaseException as error:  # User code may raise anything, also SystemExit.
        # Gymnasium repeats all arguments in its message, so take the original one.
        message = str(error.__cause__ if isinstance(error.__cause__, TypeError) else error)
        if isinstance(error, TypeError) and "argument" in message:
            raise EnvError(f"{env_id} does not accept these options: {message.splitlines()[0]}") from error
        raise EnvError(f"cannot make {env_id}: {describe_error(error)}") from error


def _select_accepted(kind: type, given: Options) -> Info:
    """Select the arguments that the constructor of `kind` accepts."""
    parameters = inspect.signature(kind).parameters
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in given.items() if everything or name in parameters}


def _list_parameters(kind: type) -> dict[str, Any]:
    """List the arguments of a constructor with their defaults, including those that it passes on to its base classes.

    The list is empty if they are passed on to anything else.
    """
    defaults: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if base is TokenVectorEnv and defaults:
            del named["prompts"]  # The subclass passes its own.
        defaults = named | defaults
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return defaults
    return {}


def _load_entry(spec: EnvSpec, entry: object) -> Any:
    """Load the object of an entry point."""
    if not isinstance(entry, str):
        return entry
    from gymnasium.envs.registration import load_env_creator

    try:
        return load_env_creator(entry)
    except (ImportError, AttributeError, ValueError, gymnasium.error.Error) as error:
        raise EnvError(f"cannot load {spec.id} from {entry}: {describe_error(error)}") from error


def _find_class(spec: EnvSpec, *kinds: type) -> Any:
    """Return the class of a spec, vector or single, if it is one of `kinds`; `None` otherwise."""
    for entry in (spec.vector_entry_point, spec.entry_point):
        target = _load_entry(spec, entry)
        if isinstance(target, type) and issubclass(target, kinds):
            return target
    return None
