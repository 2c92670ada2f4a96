"""What the source of a chat template names: roles that it has branches for, variables that it reads, parts of contents.
It is parsed and not compiled: jinja's compiler computes constants, and a stranger may write `7 ** 30000000`.

A name that a template writes is not one that it accepts: Gemma's writes `model` for the role `assistant`. So a role counts where
the role of a message is compared with it, or looked up in a dictionary that has it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from jinja2 import nodes

from pipeline.corpus.as_served import ROLES, SENDERS

_WHETHER = ("defined", "undefined", "none", "default", "d")  # tests and filters that ask whether a variable is given


class TemplateNames:
    """The names in the templates of a tokenizer, `sources`. What cannot be parsed names nothing but its words; it fails when it
    renders."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._text = "\n".join(sources)
        parsed = [tree for source in sources if (tree := _parsed(source)) is not None]
        self._whole = len(parsed) == len(sources)
        self.over_parts = any(map(_goes_over_parts, parsed))  # of a content, as of a list
        branches = {name for tree in parsed for name in _roles(tree)}
        self.own_roles = {name: name for name in SENDERS if name not in ROLES and name in branches}
        self._variables = {name for tree in parsed for name in _asked_for(tree)}

    def quotes(self, name: str) -> bool:
        """Whether `name` stands in quotes somewhere: a role that nothing else has."""
        return re.search(rf"""(['"]){re.escape(name)}\1""", self._text) is not None

    def reads(self, name: str) -> bool:
        """Whether `name` is a variable that the template asks for."""
        return name in self._variables or (
            not self._whole and re.search(rf"\b{re.escape(name)}\b", self._text) is not None
        )


def _parsed(source: str) -> nodes.Template | None:
    """The parsed template, with transformers' own extensions of the language."""
    from transformers.utils import chat_template_utils

    try:
        return chat_template_utils._compile_jinja_template("").environment.parse(source)  # type: ignore[no-any-return]
    except Exception:  # a stranger's program, nested as deep as it likes
        return None


def _asked_for(tree: nodes.Template) -> set[str]:
    """The variables that a template reads and does not set, or sets where they are not given: by a test, a default, or from
    themselves."""
    names = list(tree.find_all(nodes.Name))
    read = {name.name for name in names if name.ctx == "load"}
    own = {name.name for name in names if name.ctx != "load"}
    given = {
        asked.name
        for asks in tree.find_all((nodes.Test, nodes.Filter))
        if asks.name in _WHETHER and isinstance(asked := asks.node, nodes.Name)
    }
    given |= {
        assigned.target.name
        for assigned in tree.find_all(nodes.Assign)
        if isinstance(assigned.target, nodes.Name)
        and assigned.target.name
        in {node.name for node in (assigned.node, *assigned.node.find_all(nodes.Name)) if isinstance(node, nodes.Name)}
    }
    return (read - own) | (read & given)


def _roles(tree: nodes.Template) -> Iterator[str]:
    """The texts that the role of a message is compared with, or that a dictionary has for one."""
    values = _assigned(tree)
    names = {name for name, assigned in values.items() if all(_is_item(value, "role") for value in assigned)}

    def is_role(value: nodes.Node) -> bool:
        value = _bare(value)
        return _is_item(value, "role") or (isinstance(value, nodes.Name) and value.name in names)

    for compared in tree.find_all(nodes.Compare):
        sides = [compared.expr, *(operand.expr for operand in compared.ops)]
        if any(map(is_role, sides)):
            yield from _texts(side for side in sides if not is_role(side))
    for lookup in tree.find_all(nodes.Getitem):
        if is_role(lookup.arg):
            yield from _texts(pair.key for pair in lookup.node.find_all(nodes.Pair))


def _goes_over_parts(tree: nodes.Template) -> bool:
    """Whether a loop goes over the content of a message, under whatever name: of a variable, or of a macro's parameter.

    vLLM and SGLang ask the same of a template, and hand it lists of parts if so.
    """
    values = _assigned(tree)
    names = {name for name, assigned in values.items() if any(_is_item(value, "content") for value in assigned)}

    def is_content(value: nodes.Node) -> bool:
        value = _bare(value)
        return _is_item(value, "content") or (isinstance(value, nodes.Name) and value.name in names)

    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
        if macro is not None:
            given = [(parameter.name, value) for parameter, value in zip(macro.args, call.args, strict=False)]
            given += [(keyword.key, keyword.value) for keyword in call.kwargs]
            names |= {name for name, value in given if is_content(value)}
    return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _assigned(tree: nodes.Template) -> dict[str, list[nodes.Node]]:
    """What each variable is set to."""
    values = dict[str, list[nodes.Node]]()
    for assigned in tree.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name):
            values.setdefault(assigned.target.name, []).append(_bare(assigned.node))
    return values


def _bare(value: nodes.Node) -> nodes.Node:
    """The expression without filters, tests, slices and what stands in its place where it is empty."""
    while True:
        match value:
            case nodes.Filter(node=inner) | nodes.Test(node=inner) if inner is not None:
                value = inner
            case nodes.Getitem(node=inner, arg=nodes.Slice()):
                value = inner
            case nodes.Or(left=inner):
                value = inner
            case _:
                return value


def _is_item(value: nodes.Node, name: str) -> bool:
    """`x.name`, `x['name']` or `x.get('name')`."""
    if isinstance(value, nodes.Call):
        first = value.args[0] if value.args else None
        return _is_item(value.node, "get") and isinstance(first, nodes.Const) and first.value == name
    if isinstance(value, nodes.Getattr):
        return value.attr == name
    return isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Const) and value.arg.value == name


def _texts(values: Iterable[nodes.Node]) -> Iterator[str]:
    for value in values:
        for node in (value, *value.find_all(nodes.Const)):
            if isinstance(node, nodes.Const) and isinstance(node.value, str):
                yield node.value
