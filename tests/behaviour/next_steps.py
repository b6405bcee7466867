"""Find every next step that the code can print, as a pattern of the printed text.

`sentences(room)` reads the source of a room and collects what is given as `next_step`: to an error, to a
helper function that passes it on, as its default, or as a name that is assigned before. Braces of an f-string
match any text. A next step that is passed on from another error (`error.next_step`) is found where it is
written.
"""

import ast
import re
from pathlib import Path

import smallfiles

PACKAGE = Path(smallfiles.__file__).parent


def sentences(room):
    """Each next step of a room: the pattern of its text, and where it stands."""
    modules = {
        path: ast.parse(path.read_text())
        for path in (sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / room])
    }
    helpers = {
        node.name: position
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for position, argument in enumerate(node.args.args)
        if argument.arg == "next_step"
    }
    found: dict[str, str] = {}
    for path, tree in modules.items():
        names = _assigned(tree)
        for expression in _given(tree, helpers):
            for pattern in _patterns(expression, names):
                if (
                    re.search(r"[a-z]{3}", pattern) and pattern != "None"
                ):  # more than a text that is passed on
                    found.setdefault(pattern, f"{path.relative_to(PACKAGE)}:{expression.lineno}")
    return found


def _given(tree, helpers):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (each.value for each in node.keywords if each.arg == "next_step")
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            offset = 1 if isinstance(node.func, ast.Attribute) and name in helpers else 0
            position = helpers.get(name, len(node.args)) - offset
            if position < len(node.args):
                yield node.args[position]
        if isinstance(node, ast.FunctionDef):
            with_default = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            pairs = [*zip(with_default, node.args.defaults, strict=True)]
            pairs += [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
            yield from (default for each, default in pairs if each.arg == "next_step" and default)


def _assigned(tree):
    """The texts that are assigned to each name of a module, also one of several names at once."""
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = [*zip(target.elts, node.value.elts, strict=True)]
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        names.setdefault(name.id, []).append(value)
    return names


def _patterns(node, names, depth=0):
    if isinstance(node, ast.Constant):
        return [re.escape(str(node.value))]
    if isinstance(node, ast.IfExp):
        return [*_patterns(node.body, names, depth), *_patterns(node.orelse, names, depth)]
    if isinstance(node, ast.BoolOp):
        return [each for value in node.values for each in _patterns(value, names, depth)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = _patterns(node.right, names, depth)
        return [first + second for first in _patterns(node.left, names, depth) for second in right]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ["", *_patterns(node.left, names, depth)]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                re.escape(str(each.value)) if isinstance(each, ast.Constant) else ".*" for each in node.values
            )
        ]
    if isinstance(node, ast.Name) and node.id in names and depth < 3:
        return [each for value in names[node.id] for each in _patterns(value, names, depth + 1)]
    return [".*"]
