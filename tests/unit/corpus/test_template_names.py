"""What a chat template knows is found in its source, in every spelling; what it only writes is not."""

from pathlib import Path

import pytest
from jinja2 import nodes

from pipeline.corpus.template_names import TemplateNames

FAMILIES = Path(__file__).parents[1] / "segments/templates"


def _loop(inner: str) -> TemplateNames:
    return TemplateNames((f"{{% for m in messages %}}{inner}{{% endfor %}}",))


@pytest.mark.parametrize(
    "inner",
    [
        "{% if m.role == 'ipython' %}{{ m.content }}{% endif %}",
        "{% if 'ipython' == m['role'] %}x{% endif %}",
        "{% if m['role'] in ['tool', 'ipython'] %}x{% endif %}",
        "{% if m.get('role') != 'ipython' %}x{% endif %}",
        "{% set r = m.role %}{% if r | lower == 'ipython' or r == 'tool' %}x{% endif %}",
        "{{ {'user': '<u>', 'ipython': '<i>'}[m.role] }}",
        "{% generation %}{{ 'x' if m.role == 'ipython' else '' }}{% endgeneration %}",
    ],
)
def test_a_role_that_has_a_branch_is_known(inner: str) -> None:
    assert {"ipython": "ipython"} == _loop(inner).own_roles


@pytest.mark.parametrize(
    "inner",
    [
        "{% set r = 'ipython' if m.role == 'tool' else m.role %}{% if r == 'ipython' %}x{% endif %}{{ r }}",
        "{{ '<ipython>' }}{{ 'ipython' }}{{ m.role }}",
        "{% if m.name == 'ipython' %}x{% endif %}{# m.role == 'ipython' #}",
        "{% if m.role == 'ipython' %}",  # no template
    ],
)
def test_a_role_that_is_only_written_is_not(inner: str) -> None:
    assert {} == _loop(inner).own_roles


def test_families_have_no_names_of_their_own() -> None:
    """Gemma's `model` and Llama's `ipython` are what these templates write."""
    assert {} == {name: 1 for path in FAMILIES.glob("*.jinja") for name in TemplateNames((path.read_text(),)).own_roles}


@pytest.mark.parametrize(
    ("inner", "over"),
    [
        ("{% for p in m.content %}{{ p.text }}{% endfor %}", True),
        ("{% for p in m['content'] if p.type == 'text' %}{{ p.text }}{% endfor %}", True),
        ("{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}", True),
        ("{% for p in m.get('content') or [] %}{{ p.text }}{% endfor %}", True),
        ("{% set content = m.content %}{% for p in content %}{{ p.text }}{% endfor %}", True),
        ("{% set c = m['content'] %}{% for p in c[1:] %}{{ p.text }}{% endfor %}", True),
        ("{% macro w(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{{ w(m.content) }}", True),
        ("{% macro w(a, c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{{ w(1, c=m.content) }}", True),
        ("{% macro w(c) %}{% for p in c %}{{ p.name }}{% endfor %}{% endmacro %}{{ w(tools) }}{{ m.content }}", False),
        ("{% for line in m.content.split('a') %}{{ line }}{% endfor %}", False),
        ("{% for t in m.tool_calls %}{{ t.name }}{% endfor %}{{ m.content }}", False),
        ("{{ m.content }}", False),
    ],
)
def test_a_loop_over_parts_is_found_in_every_spelling(inner: str, over: bool) -> None:
    assert over == _loop(inner).over_parts


def test_variables_that_a_template_reads() -> None:
    """One that cannot be parsed is taken to read what it names; it fails when it renders."""
    names = _loop("{% set own = 1 %}{{ own }}{% if thinking is defined %}{{ m.hidden }}{% endif %}")
    assert [True, False, False] == [names.reads(name) for name in ("thinking", "own", "hidden")]
    assert _loop("{% if thinking %}").reads("thinking")
    assert not _loop("{% if thinking %}").reads("think")


def test_no_constant_of_a_template_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may write `7 ** 30000000`, or a text of 3 GB, and limits hold only while a template is rendered."""

    def computed(*_: object) -> None:
        raise AssertionError

    for kind in (nodes.Mul, nodes.Pow, nodes.Filter):
        monkeypatch.setattr(kind, "as_const", computed)
    names = TemplateNames(["{{ 'a' * 3 }}{{ 7 ** 3 }}{{ 'a' | center(3) }}{{ tools }}"])
    assert (True, False) == (names.reads("tools"), names.reads("documents"))


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        ("{{ system }}", True),
        ("{% set system = messages[0].content %}{{ system }}", False),
        ("{% if system is not defined %}{% set system = 'x' %}{% endif %}{{ system }}", True),
        ("{% set system = system or 'x' %}{{ system }}", True),
        ("{% set system = system | default('x') %}{{ system }}", True),
        ("{% for system in messages %}{{ system }}{% endfor %}", False),
        ("{% macro f(system) %}{{ system }}{% endmacro %}{{ f(1) }}", False),
    ],
)
def test_a_variable_is_asked_for_where_it_may_be_given(template: str, asked: bool) -> None:
    assert asked == TemplateNames([template]).reads("system")
