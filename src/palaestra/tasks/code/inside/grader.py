"""Runs the tests in their own sandbox, separate from the program: requests calls and compares the results.

Messages go to the host, which passes them on to the program. The program may send requests too, but only about objects
that the tests passed to it: it can read and set public attributes of objects whose classes the tests define, and call
functions that the tests define. It cannot reach private attributes, namespaces, frames, modules or attributes of classes,
and it cannot replace methods.
"""

from __future__ import annotations

import ast
import builtins
import gc
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from collections.abc import Mapping
    from typing import Any

    Value = Any  # A Python value of the program or the tests, or its packed form.
    Request = dict[str, Any]

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from peer import OPERATORS, SHARED, TESTS, Peer, Proxy, Seen, operate  # type: ignore[import-not-found]  # noqa: E402

FUNCTION, METHOD, BUILTIN = type(lambda: None), type(Seen().add), type(len)
FINISHED = 77
"""Exit status of a job that completed. Tests that end their process exit with another status."""
DEEPEST = 5000
"""Recursion limit: a nested value needs several calls for each level."""
PASSED_ON = ("len", "getitem", "setitem", "delitem", "iter", "next", "reversed", "str", "repr", "bool")
"""Operators of the program's objects that the program evaluates. The tests compare the plain values that it returns."""
BETWEEN = ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")  # fmt: skip
"""Operators that the program evaluates only between two of its own objects. It cannot decide how one compares with an
expected value."""

GENERATED = frozenset(f"__{name}__" for name in ("repr", "str", "format", "eq", "ne", "lt", "le", "gt", "ge", "hash"))
"""Methods of a dataclass that show or compare all of its fields."""


class Gone(BaseException):
    """The program has ended. The host records the reason."""


class Faulty(BaseException):
    """The tests are wrong, or pass an object to the program that cannot be shared."""


class NotGiven(TypeError):
    """An object of the tests that cannot be passed to the program."""


class TestsPeer(Peer):  # type: ignore[misc]
    """The tests' end of the channel."""

    def __init__(self, channel: Value) -> None:
        super().__init__(channel, "tests", perform, keep, proxy)
        self.heard = 0
        """Number of messages received from the program."""
        self.objects: dict[int, ProgramObject] = {}
        self.classes: Request = {}

    def receive(self) -> Value:
        message = super().receive()
        self.heard += 1
        if "gone" in message:
            raise Gone
        return message

    def ask(self, args: Value = (), kwargs: Mapping[str, Value] = {}, **request: Value) -> Value:
        try:
            return super().ask(args, kwargs, **request)
        except NotGiven as error:
            raise Faulty(str(error)) from None

    def _error(self, names: list[str], message: str) -> Exception:
        error: Exception = super()._error(names, message)
        error._of_program = True  # type: ignore[attr-defined]
        return error


peer: TestsPeer


def keep(value: Value) -> Value:
    """The reference to an object of this process."""
    if isinstance(value, ProgramObject):
        where = object.__getattribute__(value, "_where")
        return {"program": where["of"]} if "of" in where else where
    if (named := get_qualified_name(value)) is not None:
        return {"named": named}
    if not may_be_given(value):
        raise NotGiven(f"the tests pass a {type(value).__name__} to the program, which cannot leave their process")
    kind = type(value)
    number, new = peer.number(value)
    if not new:
        return {"tests": number}
    if kind.__module__ != TESTS or isinstance(value, type):
        return {"tests": number, "class": [None, "function", []]}
    own = {name for base in kind.__mro__ if base.__module__ == TESTS for name, x in vars(base).items() if x is not None}
    return {"tests": number, "class": [peer.number(kind)[0], kind.__name__, sorted(own & OPERATORS)]}


def get_qualified_name(value: Value) -> list[str] | None:
    """Module and name of a function or class of Python, so that the other side can look it up."""
    owner = getattr(value, "__objclass__", value)  # Of a method such as `str.upper`.
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if value is NotImplemented or value is Ellipsis:
        module, name = "builtins", repr(value)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    resolved: Value = sys.modules.get(module)
    for part in name.split("."):
        resolved = getattr(resolved, part, None)
    return [module, name] if resolved is value and value is not None else None


def may_be_given(value: Value) -> bool:
    """Whether the program may get a proxy of an object: the tests defined it, and it gives no access to their process."""
    kind = type(value)
    if isinstance(value, type) or kind is FUNCTION:
        return bool(value.__module__ == TESTS)
    if kind is METHOD:
        return may_be_given(value.__func__)
    if kind is BUILTIN:  # `results.append`
        return type(value.__self__).__module__ in ("builtins", "_collections", "collections") and not isinstance(
            value.__self__, (type, type(sys))
        )
    if kind.__name__ == "partial" and kind.__module__ == "functools":
        return get_qualified_name(value.func) is not None or may_be_given(value.func)
    return kind is object or bool(kind.__module__ == TESTS)


def perform(request: Request, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Handle a request of the program about an object that was passed to it."""
    what, target, name = request["what"], peer.kept[request["of"]], request.get("name", "")
    if what == "call":
        return target(*args, **kwargs)
    if isinstance(target, type) or type(target).__module__ != TESTS or name.startswith("_") != (what == "operate"):
        raise AttributeError(f"'{type(target).__name__}' object has no attribute '{name}'")
    if what == "get":
        return getattr(target, name)
    if name in GENERATED and any(field.startswith("_") for field in getattr(target, "__dataclass_fields__", ())):
        raise TypeError(f"{name} of '{type(target).__name__}' would show its private fields")
    if what == "set" and callable(getattr(type(target), name, None)):
        raise AttributeError(f"'{type(target).__name__}' object attribute '{name}' is read-only")
    if what == "set":
        return setattr(target, name, args[0])
    if what == "copy" and name in ("copy", "deepcopy"):
        return getattr(__import__("copy"), name)(target)
    return operate(target, name, args)


def proxy(reference: Request) -> Value:
    """The builtin that the program names, or the proxy of its object."""
    if "named" in reference:
        return SHARED[reference["named"][1]]
    number = reference["program"]
    if number not in peer.objects:
        name = reference["class"]
        if name not in peer.classes:
            peer.classes[name] = type(name, (ProgramObject,), {})
        peer.objects[number] = peer.classes[name]({"of": number})
    return peer.objects[number]


class ProgramObject(Proxy):  # type: ignore[misc]
    """A proxy of a function, class or object of the program, by name or number.

    It equals itself. The program decides whether it equals another object of the program, but cannot claim that it equals
    anything else.
    """

    def __init__(self, where: Request) -> None:
        object.__setattr__(self, "_where", where)

    def __getattr__(self, name: str) -> Value:
        return ask(self, "get", name)

    def __setattr__(self, name: str, value: Value) -> None:
        ask(self, "set", name, (value,))

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return peer.ask(args, kwargs, what="call", **object.__getattribute__(self, "_where"))

    def __instancecheck__(self, value: Value) -> bool:
        return isinstance(value, ProgramObject) and ask(self, "isinstance", "", (value,)) is True

    def __subclasscheck__(self, value: Value) -> bool:
        return ask(self, "issubclass", "", (value,)) is True

    def __enter__(self) -> Value:
        return ask(self, "operate", "__enter__")

    def __exit__(self, *raised: Value) -> None:
        """Exit a context of the program. Exceptions of the tests are not passed on."""
        ask(self, "operate", "__exit__", (None, None, None))

    def __copy__(self) -> Value:
        return ask(self, "copy", "copy")

    def __deepcopy__(self, memo: Value) -> Value:
        return ask(self, "copy", "deepcopy")

    __hash__ = object.__hash__


def ask(target: ProgramObject, what: str, name: str, args: Value = ()) -> Value:
    """Ask the program about one of its objects."""
    return peer.ask(args, what=what, name=name, **object.__getattribute__(target, "_where"))


def _operator(name: str, between: bool) -> Value:
    def method(self: ProgramObject, *args: Value) -> Value:
        if self is (args[0] if args else None) and name == "__eq__":
            return True
        if between and not isinstance(args[0], ProgramObject):
            return NotImplemented
        return ask(self, "operate", name, args)

    return method


for _name in (*PASSED_ON, *BETWEEN):
    setattr(ProgramObject, f"__{_name}__", _operator(f"__{_name}__", _name in BETWEEN))


class Asserts(ast.NodeTransformer):
    """Turns every assertion into a separate test, so that a failure does not hide the others."""

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        """`assert x` -> `__assert__(lambda: x)`."""
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        call = ast.Call(ast.Name("__assert__", ast.Load()), [ast.Lambda(empty, node.test)], [])
        return ast.copy_location(ast.Expr(call), node)


def find_names(tree: ast.AST) -> Request:
    """Values for the names that the tests use but do not define: modules of Python, or names of the program."""
    stored: set[str | None] = set()
    loaded: set[str] = set()
    modules: set[str] = set()
    errors: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            modules.add(node.value.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            stored.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler):
            stored.add(node.name)
            errors.update(child.id for child in ast.walk(node.type or ast.Pass()) if isinstance(child, ast.Name))
    scope: Request = {}
    for name in loaded - stored - set(dir(builtins)):
        if name in modules and name in getattr(sys, "stdlib_module_names", ()):
            scope[name] = __import__(name)
        elif name in errors:  # The program raises it, and the tests catch it by name.
            scope[name] = type(name, (Exception,), {})
        else:
            scope[name] = ProgramObject({"root": name})
    return scope


def judge(job: Request) -> None:
    """Run all tests of a job, and report a verdict for each."""
    count = 0

    def tell(verdict: str, error: Exception | None = None) -> None:
        nonlocal count
        count += 1
        peer.send({"test": {"verdict": verdict, "detail": explain(error) if error is not None else ""}})

    def check(test: Value) -> None:
        try:
            tell("passed" if test() else "wrong_answer")
        except Exception as error:
            raise_if_ours(error)
            tell("runtime_error", error)

    def raise_if_ours(error: Exception) -> None:
        """Raise if the tests are at fault: an error before the first request to the program, or a missing module."""
        foreign = getattr(error, "_of_program", False)
        if not foreign and (not peer.heard or isinstance(error, ImportError)):
            raise Faulty(explain(error)) from None

    try:
        tree = ast.parse(job["tests"])
        scope = find_names(tree)
        scope.update({name: ProgramObject({"root": name}) for name in job["names"]})
        scope.update({"__name__": TESTS, "__assert__": check})
        peer.errors = scope
        exec(compile(job["given"], "given.py", "exec", dont_inherit=True), scope)
        tree = ast.fix_missing_locations(Asserts().visit(tree))
        exec(compile(tree, "tests.py", "exec", dont_inherit=True), scope)
        if job["check"]:
            scope["check"](ProgramObject({"root": job["check"]}))
    except Gone:
        tell("gone")
    except Exception as error:
        # Between assertions, the program raised an exception or returned a value that the tests cannot use.
        raise_if_ours(error)
        tell("runtime_error", error)
    peer.send({"done": count})


def explain(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def limit(job: Request) -> None:
    """Limit the resources that the tests may use on values of the program."""
    sys.setrecursionlimit(DEEPEST)
    gc.disable()  # A job is short, and a garbage collection over a million containers is slow.
    for kind, most in ((resource.RLIMIT_CPU, job["seconds"]), (resource.RLIMIT_AS, job["memory"])):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main() -> None:
    """Run jobs, each in a forked process, so that they cannot affect each other."""
    global peer
    from channel import HostChannel  # type: ignore[import-not-found]

    peer = TestsPeer(HostChannel())
    while True:
        job = Peer.receive(peer)
        child = os.fork()
        if not child:
            try:
                limit(job)
                judge(job)
            except BaseException as error:
                faulty = isinstance(error, Faulty)
                peer.send({"broken": str(error)[:500] if faulty else explain(error), "faulty": faulty})
            os._exit(FINISHED)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != FINISHED:
            peer.send({"broken": f"they ended with status {status}", "faulty": False})


if __name__ == "__main__":
    main()
