"""Find the parts of a recipe's text that the GPU depends on, and those that the host's time depends on; hash each.

Nothing here compiles, and nothing imports torch or CuTe: a recipe is read as text. Its **device code** is what its
kernels are made of: functions under `@cute.kernel` and `@cute.jit`, functions that call `cute.compile`, the
configurations (ROOTS), and whatever of the module these refer to. The rest of its non-lab cells is its **host code**,
together with every module of the cookbook that these cells import.

Two texts have the same hash where they differ only in names of local variables and of parameters, docstrings, comments,
annotations that nothing reads, and the order of definitions. It is the same for every Python that runs the cookbook.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cookbook.recipe import catalog, imports

__all__ = ["ROOTS", "canonical", "device_hash", "digest", "host_hash", "kernel_names", "of_files"]

ROOTS = ("compile_for", "config_for", "configs_for", "beside", "CONFIG", "VARIANTS", "KERNELS", "EXPERIMENT")
DECORATORS = ("jit", "kernel")  # of `cute`
PACKAGE = "cookbook"
MOVED = f"{PACKAGE}.recipe.moved"  # what it imports counts by its first place there, in the recent version of CuTe
_FOLDER = Path(__file__).resolve().parents[2] / PACKAGE
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SKIPPED = {"ctx", "type_comment", "kind", "type_ignores", "returns"}


def device_hash(name: str, root: Path | None = None) -> str:
    """SHA-256 (hex) of the device code of a recipe.

    Raises:
        UnknownRecipe: there is none of that name.
    """
    return _device(_text(name, root))


def host_hash(name: str, root: Path | None = None) -> str:
    """SHA-256 (hex) of the host code of a recipe, and of the cookbook's modules that its non-lab cells import.

    Raises:
        UnknownRecipe: there is none of that name.
    """
    own, imported = _host(_text(name, root))
    return digest(own, *map(canonical, _texts(imported)))


def kernel_names(source: str) -> set[str]:
    """Names at the top of a recipe's text that its kernels, and the functions that launch them, are made of."""
    module = _recipe(imports.written_in(source))
    decorated = {name for name, function in module.functions.items() if module._decorated(function)}
    return {name for name, of in module.reachable(decorated) if of is None}


def digest(*texts: str) -> str:
    """SHA-256 (hex) of several texts, told apart."""
    made = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8")
        made.update(b"%d:" % len(data) + data)
    return made.hexdigest()


def of_files(files: Iterable[Path]) -> str:
    """SHA-256 (hex) of the code of whole Python files."""
    return digest(*(canonical(file.read_text(encoding="utf-8")) for file in files))


@lru_cache(maxsize=256)
def canonical(source: str) -> str:
    """All definitions and assignments of a Python text in the form that is hashed, in the order of their names."""
    module = _Module(source)
    return _together(module, module.names())


def _text(name: str, root: Path | None) -> str:
    """The text of a recipe, with what it imports of others written in: where a function stands is not told apart."""
    file = (root or catalog.recipes_root()) / f"{name}.py"
    if name.count("/") != 1 or not file.is_file():
        file = catalog.find(name, root).file
    return imports.written_in(file.read_text(encoding="utf-8"), root)


@lru_cache(maxsize=256)
def _device(source: str) -> str:
    """The hash of a recipe's device code: made once for each text."""
    module = _recipe(source)
    found = module.device()
    own = {name for name, of in found if of is None}
    others = (_together(_module_of(of), {name}) for name, of in sorted(found, key=str) if of is not None)
    return digest(_together(module, own), *others)


@lru_cache(maxsize=256)
def _host(source: str) -> tuple[str, tuple[str, ...]]:
    """The hash of a recipe's own host code, likewise; the cookbook's modules that it imports."""
    module = _recipe(source)
    own = digest(_together(module, module.names() - {name for name, of in module.device() if of is None}))
    return own, tuple(module.of_package)


@lru_cache(maxsize=64)
def _recipe(source: str) -> _Module:
    return _Module(catalog.without_lab(source))


def _together(module: _Module, names: set[str]) -> str:
    lines = [f"{name} {text}" for name in sorted(names) for text in module.texts(name)]
    if any(len(module.bound[name]) > 1 for name in names):  # what is bound twice: its place among the others matters
        numbers = sorted({number for name in names for number in module.bound[name]})
        lines += [",".join(name for name in sorted(names) if n in module.bound[name]) for n in numbers]
    return "\n".join(lines)


# --- modules of the cookbook that a recipe imports -----------------------------------------------------------------


def _file_of(module: str) -> Path | None:
    """The file of a module of this package."""
    parts = module.split(".")[1:]
    tries = (_FOLDER.joinpath(*parts).with_suffix(".py") if parts else None, _FOLDER.joinpath(*parts, "__init__.py"))
    return next((file for file in tries if file is not None and file.is_file()), None)


@lru_cache(maxsize=1)
def _places() -> dict[str, ast.expr]:
    """`cutlass.memory.SmemAllocator` by the name in MOVED: where each `try` there looks first."""
    file = _file_of(MOVED)
    tries = ast.parse(file.read_text(encoding="utf-8")).body if file else []
    firsts = [node.body[0] for node in tries if isinstance(node, ast.Try)]
    found = {name: path for first in firsts for name, path in _imports(first).items()}
    return {name: ast.parse(".".join(path), mode="eval").body for name, path in found.items()}


def _module_of(name: str) -> _Module:
    file = _file_of(name)
    return _read(file.read_text(encoding="utf-8")) if file else _read("")


@lru_cache(maxsize=64)
def _read(source: str) -> _Module:
    return _Module(source)


def _texts(modules: Iterable[str]) -> list[str]:
    """The texts of modules of the cookbook and of those that they import, by their names."""
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found and (file := _file_of(name)) is not None:
            found[name] = file.read_text(encoding="utf-8")
            waiting += _read(found[name]).of_package
    return [found[name] for name in sorted(found)]


# --- a module -------------------------------------------------------------------------------------------------------


class _Module:
    """The statements of a module, by the names that they bind."""

    def __init__(self, source: str) -> None:
        self.source, self.statements = source, ast.parse(source).body
        self.bound: dict[str, list[int]] = {}  # numbers of statements
        self.imports: dict[str, tuple[str, str]] = {}  # name: (module, what of it; "" for the module itself)
        self._written: dict[int, tuple[str, set[str]]] = {}
        for number, statement in enumerate(self.statements):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imports |= _imports(statement)
                continue
            for name in _bound_by(statement):
                if name in self.bound or not isinstance(statement, ast.Expr):
                    self.bound.setdefault(name, []).append(number)
        self.functions = {s.name: s for s in self.statements if isinstance(s, _FUNCTIONS)}
        classes = [s for s in self.statements if isinstance(s, ast.ClassDef)]
        self.attributes = {name for c in classes for name in _scope(c.body).names}  # what a function may be kept in
        self.records = {c.name for c in classes if all(getattr(s, "name", "") != "__init__" for s in c.body)}
        self.by_keyword = _Keywords(self)

    @cached_property
    def of_package(self) -> list[str]:
        """The module's imports of the cookbook, inside functions too."""
        if PACKAGE not in self.source:
            return []
        paths = [path for node in _walk(*self.statements) for path in _imports(node).values()]
        paths = [path for path in paths if path[0].split(".")[0] == PACKAGE and path[0] != MOVED]
        return [name for module, what in paths for name in (module, f"{module}.{what}")]

    def names(self) -> set[str]:
        return set(self.bound)

    def texts(self, name: str) -> list[str]:
        return [self._write(number)[0] for number in self.bound.get(name, [])]

    def _write(self, number: int) -> tuple[str, set[str]]:
        if number not in self._written:
            writer = _Writer(self)
            writer.write(self.statements[number])
            self._written[number] = "".join(writer.out), writer.globals
        return self._written[number]

    def roots(self) -> set[str]:
        """The names that device code begins from."""
        compiles = {f.name for f in self.functions.values() if self._decorated(f) or self._calls_compile(f)}
        return compiles | (self.names() & set(ROOTS))

    def device(self) -> set[tuple[str, str | None]]:
        """Return what device code is made of: see `reachable`."""
        return self.reachable(self.roots())

    def _decorated(self, function: _Function) -> bool:
        return any(isinstance(d, ast.Attribute) and d.attr in DECORATORS for d in function.decorator_list)

    def is_kernel(self, node: ast.AST) -> bool:
        """Return whether `node` is a call of a kernel of the module."""
        function = self.functions.get(getattr(getattr(node, "func", None), "id", ""))
        return function is not None and self._decorated(function)

    def _calls_compile(self, function: ast.AST) -> bool:
        calls = (node.func for node in _walk(function) if isinstance(node, ast.Call))
        return any(self.path(call) == "cutlass.cute.compile" for call in calls)

    def path(self, node: ast.AST) -> str:
        """The dotted path of `cute.arch.x` through the imports, or "" where it begins with no import."""
        tail: list[str] = []
        while isinstance(node, ast.Attribute):
            tail.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        return ".".join([part for part in self.imports[node.id] if part] + tail[::-1])

    def reachable(self, names: set[str]) -> set[tuple[str, str | None]]:
        """(name, None) of this module, (name, module) of others of the cookbook: `names` and all they refer to."""
        found: set[tuple[str, str | None]] = set()
        waiting: list[tuple[str, str | None]] = [(name, None) for name in names]
        while waiting:
            name, where = waiting.pop()
            module = self if where is None else _module_of(where)
            if name in module.imports:
                imported, what = module.imports[name]
                if imported.split(".")[0] != PACKAGE:
                    continue
                whole = f"{imported}.{what}"
                if what and _file_of(whole) is None:
                    waiting.append((what, imported))
                    continue
                for each in {whole} if what else {imported, *module.of_package}:  # `import cookbook.x`: any of them
                    waiting += [(inside, each) for inside in _module_of(each).names()]
            elif name in module.bound and (name, where) not in found:
                found.add((name, where))
                waiting += [(each, where) for number in module.bound[name] for each in module._write(number)[1]]
        return found


def _imports(statement: ast.AST) -> dict[str, tuple[str, str]]:
    """Return what each name that an import binds stands for: (module, what of it). Another statement binds none."""
    if isinstance(statement, ast.ImportFrom):
        module = "." * statement.level + (statement.module or "")
        return {alias.asname or alias.name: (module, alias.name) for alias in statement.names}
    if not isinstance(statement, ast.Import):
        return {}
    found = {}
    for alias in statement.names:
        first = alias.name.split(".")[0]  # `import a.b` binds `a`; of our own package it is b that is meant
        found[alias.asname or first] = (alias.name if alias.asname or first == PACKAGE else first, "")
    return found


def _bound_by(statement: ast.stmt) -> list[str]:
    """The module's names that a statement binds or changes."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, ast.Expr):  # VARIANTS.update(...), fill(VARIANTS); what a cell displays changes nothing
        call = statement.value
        if not isinstance(call, ast.Call):
            return []
        parts = [call.func.value] if isinstance(call.func, ast.Attribute) else [*call.args]
        return sorted({n.id for n in _walk(*parts) if isinstance(n, ast.Name)})
    names = set(_scope([statement]).names)
    for node in _walk(statement):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            names |= {n.id for n in _walk(node.value) if isinstance(n, ast.Name)}
    return sorted(names)


# --- scopes ---------------------------------------------------------------------------------------------------------


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    a = arguments
    return [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]


class _Scope(NamedTuple):
    """The names that a function, a lambda or a comprehension binds."""

    names: set[str]
    functions: dict[str, _Function]  # those that `def` alone binds, by name
    numbers: dict[str, str]  # what each name is written as, once it has come


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for field in node._fields:
        child = getattr(node, field, None)
        if isinstance(child, list):
            yield from (each for each in child if isinstance(each, ast.AST))
        elif isinstance(child, ast.AST) and field != "ctx":
            yield child


def _walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk`, in half of its time."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _children(node)


def _scope(body: Iterable[ast.AST], parameters: Iterable[ast.arg] = ()) -> _Scope:
    """Return what statements bind in their own scope."""
    found = {parameter.arg for parameter in parameters}
    functions: dict[str, ast.AST] = {}
    elsewhere: set[str] = set()
    waiting: list[tuple[ast.AST, bool]] = [(node, False) for node in body]
    while waiting:
        node, inside = waiting.pop()  # inside: of a comprehension, whose own targets stay in it
        if isinstance(node, ast.Name):
            if not inside and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            continue
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            functions[node.name] = node
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere |= set(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= set(_imports(node))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
        inside = inside or isinstance(node, _COMPREHENSIONS)
        waiting += [(child, inside) for child in _children(node)]
    known = {name: f for name, f in functions.items() if name not in found and isinstance(f, _FUNCTIONS)}
    return _Scope((found | set(functions)) - elsewhere, known, {})


class _Keywords:
    """Parameters whose names matter: those that a call may pass by keyword without saying which function it calls."""

    def __init__(self, module: _Module) -> None:
        self.names: set[str] = set()  # of calls of what is no function of the module by name
        self.values: set[str] = set()  # functions of the module that are used otherwise than in a call of theirs
        called: set[int] = set()
        for node in _walk(*module.statements):
            if isinstance(node, ast.Call):
                called.add(id(node.func))
                if node.keywords and not self._known(node, module):
                    self.names |= {k.arg for k in node.keywords if k.arg}
            elif isinstance(node, ast.Name) and node.id in module.functions and id(node) not in called:
                self.values.add(node.id)

    @staticmethod
    def _known(call: ast.Call, module: _Module) -> bool:
        """Return whether a call's keywords are of no function that this module could have handed on."""
        func = call.func
        if isinstance(func, ast.Name) and func.id in (module.functions.keys() | module.records):
            return True
        if isinstance(func, ast.Attribute) and func.attr == "launch" and module.is_kernel(func.value):
            return True  # kernel(...).launch(grid=..., stream=...)
        handed = [*call.args, *(k.value for k in call.keywords)]
        mine = any(isinstance(n, ast.Name) and n.id in module.functions for n in handed)
        foreign = isinstance(func, ast.Attribute) and func.attr not in module.attributes
        return (foreign or bool(module.path(func))) and not mine

    def kept(self, function: str | None, name: str) -> bool:
        """function: a function of the module by name; None: another, which anything may call."""
        return name in self.names and (function is None or function in self.values)


# --- the normal form ------------------------------------------------------------------------------------------------


class _Writer:
    """Writes a statement as text: local names as numbers, in the order in which they come."""

    def __init__(self, module: _Module) -> None:
        self.module = module
        self.out: list[str] = []
        self.globals: set[str] = set()
        self.scopes: list[_Scope] = []
        self.count = 0
        self.top = True

    def write(self, value: Any) -> None:
        """A node, a list of them, or a plain value."""
        if isinstance(value, ast.AST):
            _HOW.get(type(value), _Writer._node)(self, value)
        elif isinstance(value, list):
            self.out.append("[")
            for child in value:
                self.write(child)
            self.out.append("]")
        else:
            self.out.append(f"{type(value).__name__}:{value!r} ")

    def _node(self, node: ast.AST, without: tuple[str, ...] = ()) -> None:
        self.out.append(f"({type(node).__name__} ")
        for field in node._fields:
            if field in _SKIPPED or field in without:
                continue
            child = getattr(node, field, None)
            if child is not None and child != []:
                self.out.append(f"{field}=")
                self.write(child)
        self.out.append(")")

    # names

    def _named(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope.names:
                if name not in scope.numbers:
                    scope.numbers[name] = f"%{self.count}"
                    self.count += 1
                return scope.numbers[name]
        self.globals.add(name)
        if name in self.module.imports:
            return ".".join(part for part in self.module.imports[name] if part)
        return name

    def _name(self, node: ast.Name) -> None:
        module, what = self.module.imports.get(node.id, ("", ""))
        if module == MOVED and not any(node.id in scope.names for scope in self.scopes):
            self.write(_places()[what])
        else:
            self.out.append(self._named(node.id) + " ")

    def _names(self, node: ast.Global | ast.Nonlocal) -> None:
        self.out.append(f"({type(node).__name__} {' '.join(sorted(map(self._named, node.names)))})")

    def _binding(self, node: ast.AST) -> None:
        """A node with the name that it binds as a string: `except X as name`, `case name`."""
        field = "rest" if isinstance(node, ast.MatchMapping) else "name"
        name = getattr(node, field)
        self.out.append(f"[{self._named(name) if name else ''}]")
        self._node(node, (field,))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        inner = " ".join(f"{self._named(n)}={'.'.join(path)}" for n, path in _imports(node).items())
        self.out.append(f"(Import {inner})")

    # calls and text

    def _call(self, node: ast.Call) -> None:
        target = self._function(node.func)
        order = [p.arg for p in _parameters(target.args)] if target is not None else []
        self.out.append("(Call ")
        self.write(node.func)
        self.write(node.args)
        for keyword in node.keywords:
            name = f"@{order.index(keyword.arg)}" if keyword.arg in order else keyword.arg or "**"
            self.out.append(f" {name}=")
            self.write(keyword.value)
        self.out.append(")")

    def _function(self, func: ast.AST) -> _Function | None:
        """The function that a name stands for, where its text says so."""
        if not isinstance(func, ast.Name):
            return None
        for scope in reversed(self.scopes):
            if func.id in scope.names:
                return scope.functions.get(func.id)
        if func.id in self.module.functions and len(self.module.bound[func.id]) == 1:
            return self.module.functions[func.id]
        return None

    def _text(self, node: ast.JoinedStr) -> None:
        """An f-string, its neighbouring literals made one: the Python versions differ in how they part them."""
        self.out.append("(f ")
        literal = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                literal += str(part.value)
                continue
            self.out.append(repr(literal))
            literal = ""
            self.write(part)
        self.out.append(f"{literal!r})")

    # definitions

    def _definition(self, node: ast.FunctionDef) -> None:
        outer, self.top = self.top, False
        self.out.append("(def ")
        if not outer:
            self.out.append(f"{self._named(node.name)} ")
        self.write(node.decorator_list)
        typed = bool(node.decorator_list)  # `@cute.jit` reads its parameters' types
        self._body(node.args, _documented(node.body), node.name if outer else None, typed)
        self.top = outer
        self.out.append(")")

    def _lambda(self, node: ast.Lambda) -> None:
        self.out.append("(lambda ")
        self._body(node.args, [node.body], None, False)
        self.out.append(")")

    def _body(self, arguments: ast.arguments, body: list, name: str | None, typed: bool) -> None:
        parameters = _parameters(arguments)
        self.write(arguments.defaults)
        self.write([default for default in arguments.kw_defaults if default is not None])
        missing = "".join(str(int(default is None)) for default in arguments.kw_defaults)
        counts = len(arguments.posonlyargs), len(arguments.args), bool(arguments.vararg), missing, bool(arguments.kwarg)
        self.out.append(f"{counts}")
        for parameter in parameters if typed else ():
            if parameter.annotation is not None:
                self.write(parameter.annotation)
            self.out.append(";")
        self.scopes.append(_scope(body, parameters))
        for parameter in parameters:
            self.out.append(self._named(parameter.arg))
            kept = self.module.by_keyword.kept(name, parameter.arg)
            self.out.append(f"={parameter.arg} " if kept else " ")
        self.write(body)
        self.scopes.pop()

    def _class(self, node: ast.ClassDef) -> None:
        outer, self.top = self.top, False
        self.out.append("(class " if outer else f"(class {self._named(node.name)} ")
        self.write(node.decorator_list)
        self.write(node.bases)
        self.write([keyword.value for keyword in node.keywords])
        self.out.append(" ".join(keyword.arg or "**" for keyword in node.keywords))
        for statement in _documented(node.body):
            if isinstance(statement, _FUNCTIONS):
                self.out.append(f"{statement.name} ")  # a method's name is the class's
                self._method(statement)
            elif isinstance(statement, ast.AnnAssign):  # a field
                self.out.append(f"{ast.unparse(statement.target)} ")
                self._node(statement, ("target",))
            elif isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
                self.out.append(" ".join(t.id for t in statement.targets if isinstance(t, ast.Name)))
                self.write(statement.value)
            else:
                self.write(statement)
        self.top = outer
        self.out.append(")")

    def _method(self, node: _Function) -> None:
        self.write(node.decorator_list)
        self._body(node.args, _documented(node.body), None, bool(node.decorator_list))

    def _annotated(self, node: ast.AnnAssign) -> None:
        """`x: int = 3` as `x = 3`; `x: int` alone says nothing."""
        if node.value is not None:
            self.out.append("(Assign targets=[")
            self.write(node.target)
            self.out.append("]value=")
            self.write(node.value)
            self.out.append(")")

    def _comprehension(self, node: Any) -> None:
        self.out.append(f"({type(node).__name__} ")
        targets = {n.id for g in node.generators for n in _walk(g.target) if isinstance(n, ast.Name)}
        self.write(node.generators[0].iter)  # of the scope around it
        self.scopes.append(_Scope(targets, {}, {}))
        for number, generator in enumerate(node.generators):
            self.write(generator.target)
            if number:
                self.write(generator.iter)
            self.write(generator.ifs)
        for field in ("key", "value", "elt"):
            if getattr(node, field, None) is not None:
                self.write(getattr(node, field))
        self.scopes.pop()
        self.out.append(")")


_HOW: dict[type, Callable[[_Writer, Any], None]] = {
    ast.Name: _Writer._name,
    ast.Global: _Writer._names,
    ast.Nonlocal: _Writer._names,
    ast.ExceptHandler: _Writer._binding,
    ast.MatchAs: _Writer._binding,
    ast.MatchStar: _Writer._binding,
    ast.MatchMapping: _Writer._binding,
    ast.Import: _Writer._import,
    ast.ImportFrom: _Writer._import,
    ast.Call: _Writer._call,
    ast.JoinedStr: _Writer._text,
    ast.FunctionDef: _Writer._definition,
    ast.AsyncFunctionDef: _Writer._definition,
    ast.Lambda: _Writer._lambda,
    ast.ClassDef: _Writer._class,
    ast.AnnAssign: _Writer._annotated,
    **dict.fromkeys(_COMPREHENSIONS, _Writer._comprehension),
}


def _documented(body: list[ast.stmt]) -> list[ast.stmt]:
    """A body without its docstring."""
    first = body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if text else body
