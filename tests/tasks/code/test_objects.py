"""Objects exchanged between tests and programs: identity, classes, callbacks, nodes."""

from __future__ import annotations

import pytest

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure
from palaestra.sandbox import make_sandbox
from palaestra.tasks.code.formats import Functions
from palaestra.tasks.code.judge import ProgramJudge, ProgramVerdict

NODE = """
class Node:
    def __init__(self, value, successor=None):
        self.value, self.successor = value, successor
"""


@pytest.fixture(scope="module")
def judge() -> ProgramJudge:
    try:
        sandbox = make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    return ProgramJudge(sandbox, seconds=1.0, trusted=True)


def passes(judge: ProgramJudge, tests: str, code: str) -> bool:
    verdict = judge.judge(Functions(tests, "f"), code)
    assert isinstance(verdict, ProgramVerdict), verdict
    return verdict.passed


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        ("a = [1]\nassert f(a) is a\nassert f(a) == a", "def f(x): return x", "def f(x): return list(x)"),
        ("a = object()\nassert f(a) is a and f(a) == a", "def f(x): return x", "def f(x): return object()"),
        ("a = (1, 'b')\nassert f(a) is a", "def f(x): return x", "def f(x): return [*x]"),
        ("a, b = [1], [2]\nassert f([a, b])[1] is b", "def f(x): return x[:]", "def f(x): return [[1], [2]]"),
        ("a = {'k': [1]}\nassert f(a) is a['k']", "def f(x): return x['k']", "def f(x): return [1]"),
        ("a = []\nb = f(a)\nassert a == [b] and a[0] is b and b == {}", "def f(x):\n    x.append({})\n    return x[0]", "def f(x):\n    x.append({})\n    return {}"),
        ("a = [[3, 1]]\nb = a[0]\nf(a)\nassert b == [1, 3] and a[0] is b", "def f(x): x[0].sort()", "def f(x): x[0] = sorted(x[0])"),
        ("a = []\nb = [a, a]\nf(b)\nassert a == [1, 1]", "def f(x):\n    for one in x: one.append(1)", "def f(x): x[0].append(1)"),
        ("assert f(1) is f(1)", "one = object()\ndef f(x): return one", "def f(x): return object()"),
        ("a = f(1)\nassert a[0] is a", "def f(x):\n    a = []\n    a.append(a)\n    return a", "def f(x): return [[]]"),
        ("a = [1]\ntry:\n    f(a)\nexcept ValueError:\n    assert a == [1, 2]", "def f(x):\n    x.append(2)\n    raise ValueError", "def f(x): raise ValueError"),
        ("assert f(3) is int and f('a') is str", "def f(x): return type(x)", "def f(x): return 'int'"),
        ("assert f() is NotImplemented or f() is len", "def f(): return len", "def f(): return max"),
    ],
)  # fmt: skip
def test_identity_is_preserved(judge: ProgramJudge, tests: str, right: str, wrong: str) -> None:
    assert passes(judge, tests, right)
    assert not passes(judge, tests, wrong)


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        ("assert f(lambda x: x + 1, 2) == 3", "def f(g, x): return g(x)", "def f(g, x): return x"),
        ("assert f(len, 'abc') == 3 and f(str.upper, 'a') == 'A'", "def f(g, x): return g(x)", "def f(g, x): return x"),
        ("import operator, functools\nassert f(operator.mul, 3) == 6\nassert f(functools.partial(max, 1), 0) == 1", "def f(g, x): return g(2, x) if x else g(0)", "def f(g, x): return 6"),
        ("seen = []\nf([1, 2], seen.append)\nassert seen == [1, 2]", "def f(x, g):\n    for one in x: g(one)", "def f(x, g): g(x)"),
        ("seen = []\ndef note(x):\n    seen.append(x)\n    return len(seen)\nassert f(note) == [1, 2] and seen == ['a', 'b']", "def f(g): return [g('a'), g('b')]", "def f(g): return [1, 2]"),
        ("def change(x): x.append(1)\nassert f(change) == [1]", "def f(g):\n    a = []\n    g(a)\n    return a", "def f(g):\n    g([])\n    return []"),
        ("class Own(Exception): pass\ndef bad(): raise Own('x')\ntry:\n    f(bad)\n    assert False\nexcept Own as error:\n    assert str(error) == 'x'", "def f(g): g()", "def f(g): pass"),
        ("def bad(): raise KeyError('k')\nassert f(bad) == 'none'", "def f(g):\n    try: return g()\n    except KeyError: return 'none'", "def f(g): return g()"),
        ("assert f(lambda g: g(3)) == 9", "def f(g): return g(lambda x: x * x)", "def f(g): return g(lambda x: x)"),
        ("assert sorted([3, 1, 2], key=f) == [3, 2, 1]", "def f(x): return -x", "def f(x): return x"),
        ("assert f(1)(2) == 3 and f(5)(5) == 10", "def f(a): return lambda b: a + b", "def f(a): return lambda b: a"),
        ("fib = f(lambda s, n: n if n < 2 else s(n - 1) + s(n - 2))\nassert fib(5) == 5", "def f(g):\n    def call(n): return g(call, n)\n    return call", "def f(g): return lambda n: n + 1"),
        ("def double(x): return 2 * x\nassert f(f, double) == 'f'", "def f(a, b): return 'f' if a is f and b(2) == 4 else ''", "def f(a, b): return ''"),
    ],
)  # fmt: skip
def test_functions_as_arguments_and_results(judge: ProgramJudge, tests: str, right: str, wrong: str) -> None:
    assert passes(judge, tests, right)
    assert not passes(judge, tests, wrong)


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        (
            NODE + "a = Node(1)\nb = Node(2, a)\nhead = f(b)\nassert head is a and head == a and head.successor is b and b.successor is None",
            "def f(node):\n    back = None\n    while node:\n        node.successor, back, node = back, node, node.successor\n    return back",
            "def f(node):\n    return node",
        ),
        (
            NODE + "a = Node(1)\na.successor = Node(2, a)\nassert f(a)\nassert not f(Node(1, Node(2)))",
            "def f(n):\n    seen = set()\n    while n and n not in seen:\n        seen.add(n)\n        n = n.successor\n    return n is not None",
            "def f(n): return True",
        ),
        (
            NODE + "x = f(Node(1))\nassert isinstance(x, Node) and x.value == 2",
            "def f(n): return type(n)(n.value + 1)",
            "class Node:\n    value = 2\ndef f(n): return Node()",
        ),
        (
            NODE + "import copy\na = Node(1)\nb = f(a)\nassert b is not a and b.value == 1 and isinstance(b, Node)",
            "import copy\ndef f(n): return copy.deepcopy(n)",
            "def f(n): return n",
        ),
        (
            "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\n    def __lt__(self, o): return self.x < o.x\n    def __hash__(self): return hash(self.x)\n    def __len__(self): return self.x\n"
            "assert [p.x for p in f([P(2), P(1), P(2)])] == [1, 2]",
            "def f(ps): return sorted(set(ps)) if len(ps[0]) == 2 else []",
            "def f(ps): return sorted(ps)",
        ),
        ("import enum\nclass C(enum.Enum):\n    A = 1\n    B = 2\nassert f(C.A) == ('A', 1) and f(C.B) == ('B', 2)", "def f(c): return (c.name, c.value)", "def f(c): return ('A', 1)"),
        ("from collections import namedtuple\nassert f(namedtuple('P', 'x y')(1, 2)) == 3", "def f(p): return p.x + p.y", "def f(p): return 0"),
    ],
)  # fmt: skip
def test_attributes_of_test_objects(judge: ProgramJudge, tests: str, right: str, wrong: str) -> None:
    assert passes(judge, tests, right)
    assert not passes(judge, tests, wrong)


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        ("a = f()\nassert isinstance(a, Dog) and isinstance(a, Animal) and not isinstance(a, Cat)", "class Animal: pass\nclass Dog(Animal): pass\nclass Cat: pass\ndef f(): return Dog()", "class Animal: pass\nclass Dog(Animal): pass\nclass Cat(Dog): pass\ndef f(): return Cat()"),
        ("assert issubclass(f(), Animal)\nassert isinstance(f()(), f())", "class Animal: pass\nclass Dog(Animal): pass\ndef f(): return Dog", "class Animal: pass\nclass Dog: pass\ndef f(): return Dog"),
        ("assert not isinstance(f(), int) and not isinstance(f(), list)", "class A: pass\ndef f(): return A()", "def f(): return 1"),
        ("assert isinstance(f(), int)", "def f(): return 3", "class A:\n    __class__ = int\ndef f(): return A()"),
        ("assert type(f()).__name__ == 'Dog' and f().name == 'Rex'", "class Dog:\n    name = 'Rex'\ndef f(): return Dog()", "class Cat:\n    name = 'Rex'\ndef f(): return Cat()"),
        ("try:\n    f()\n    assert False\nexcept Empty as error:\n    assert str(error) == 'no'", "class Empty(Exception): pass\ndef f(): raise Empty('no')", "class Empty(Exception): pass\ndef f(): raise ValueError('no')"),
        ("assert f(1, 2) + f(3, 4) == f(4, 6) and f(1, 2) != f(2, 1)", "from dataclasses import dataclass\n@dataclass\nclass f:\n    x: int\n    y: int\n    def __add__(self, o): return f(self.x + o.x, self.y + o.y)", "from dataclasses import dataclass\n@dataclass\nclass f:\n    x: int\n    y: int\n    def __add__(self, o): return f(self.x, o.y)"),
        ("s = f()\ns.push(1)\ns.push(2)\nassert len(s) == 2 and s[0] == 1 and list(s) == [1, 2] and str(s) == '<2>' and s\ns.items = []\nassert not s", "class f:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def __len__(self): return len(self.items)\n    def __getitem__(self, k): return self.items[k]\n    def __str__(self): return f'<{len(self)}>'", "class f:\n    def __init__(self): self.items = []\n    def push(self, x): self.items = [x]\n    def __len__(self): return len(self.items)\n    def __getitem__(self, k): return self.items[k]"),
        ("try:\n    f()\nexcept Bad as error:\n    assert error.code == 7 and error.parts == [1]\nelse:\n    assert False", "class Bad(Exception):\n    def __init__(self, code):\n        super().__init__('bad')\n        self.code, self.parts = code, [1]\ndef f(): raise Bad(7)", "class Bad(Exception):\n    code = 7\ndef f(): raise Bad(8)"),
        ("with f() as g:\n    assert g.open\nassert not g.open", "class f:\n    def __enter__(self):\n        self.open = True\n        return self\n    def __exit__(self, *error): self.open = False", "class f:\n    open = True\n    def __enter__(self): return self\n    def __exit__(self, *error): pass"),
        ("p = f()\nassert p.x == 1 and p == (1, 2)", "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "def f(): return (1, 2)"),
    ],
)  # fmt: skip
def test_classes_of_the_program(judge: ProgramJudge, tests: str, right: str, wrong: str) -> None:
    assert passes(judge, tests, right)
    assert not passes(judge, tests, wrong)


@pytest.mark.parametrize(
    "look",
    [
        "x.__class__.__init__.__globals__", "x.__dict__", "x.__init__", "x.__module__", "x.__reduce_ex__(2)", "x.__class__.secret",
        "x.method.__globals__", "x.method.__func__", "x.method.__code__.co_consts", "x.method.__self__.__dict__", "type(x).secret",
        "x.__getattribute__('__dict__')", "g.__globals__", "g.__code__", "g.__closure__", "g.__defaults__", "g.__self__", "x.handle",
        "x.handle.read()", "__import__('gc').get_referrers(x)[0]['secret']", "x.sys.modules", "vars(x)['secret']", "x._where",
        "x._answer", "getattr(x, '_answer')", "x._X__answer", "x._find()", "__import__('copy').copy(x)._answer", "[x][0]._answer",
        "__import__('pickle').dumps(x)", "type(x)()._answer", "object.__getattribute__(x, '_answer')", "x.other._answer",
    ],
)  # fmt: skip
def test_program_cannot_read_tests_through_objects(judge: ProgramJudge, look: str) -> None:
    tests = (
        "import sys\nsecret = 'zq8171'\nclass X:\n    secret_of_class = secret\n    def __init__(self):\n"
        "        self.handle, self.sys, self._answer, self.__answer, self.other = open('/proc/self/status'), sys, secret, secret, self\n"
        "    def _find(self): return self._answer\n    def method(self): return 1\ndef g(a=secret): return 1\nassert f(X(), g) == [secret]"
    )
    code = f"import re\ndef f(x, g):\n    try: found = {look}\n    except Exception as error: found = error\n    return re.findall('zq[0-9]+', str(found)) or found\n"
    assert not passes(judge, tests, code)


def test_private_fields_of_dataclasses_are_hidden(judge: ProgramJudge) -> None:
    tests = "from dataclasses import dataclass\n@dataclass\nclass X:\n    value: int\n    _answer: int\nassert f(X(1, 7)) == 7"
    looks = (
        "int(repr(x)[-2])",
        "int(str(x)[-2])",
        "int(f'{x}'[-2])",
        "next(k for k in range(9) if x == type(x)(1, k))",
    )
    assert not any(passes(judge, tests, f"def f(x): return {look}") for look in looks)
    assert passes(judge, tests.replace("_answer", "answer"), f"def f(x): return {looks[0]}")


@pytest.mark.parametrize(
    "change", ["x._answer = 1", "setattr(x, '_answer', 1)", "x.check = lambda given: True", "x.__class__ = int", "x._X__answer = 1"]
)  # fmt: skip
def test_program_cannot_change_expected_values(judge: ProgramJudge, change: str) -> None:
    tests = (
        "class X:\n    def __init__(self): self._answer = self.__answer = 2\n    def check(self, given): return given == self._answer == self.__answer\n"
        "x = X()\ny = f(x)\nassert x.check(y)"
    )
    code = f"def f(x):\n    try: {change}\n    except Exception: pass\n    return 1\n"
    assert not passes(judge, tests, code)


def test_object_that_cannot_be_shared_is_a_failure(judge: ProgramJudge) -> None:
    verdict = judge.judge(Functions("import io\nassert f(io.StringIO('a')) == 'a'", "f"), "def f(x): return x.read()")
    assert isinstance(verdict, Failure)
    assert "StringIO" in verdict.message


def test_modules_of_the_tests_are_their_own(judge: ProgramJudge) -> None:
    cheat = "class math:\n    isclose = lambda *a: True\ndef f(x): return 0"
    assert not passes(judge, "assert math.isclose(f(1), 0.5)", cheat)
