from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from exegpt_gateway.chat_template import ChatTemplate, load_chat_template
from exegpt_planner.errors import InvalidSpec

HELLO = [{"role": "user", "content": "Hello <b>"}]


def render(source: str) -> str:
    return ChatTemplate(source, special_texts={"bos_token": "<s>", "eos_token": "</s>"}).render(
        HELLO
    )


def test_special_tokens_and_the_generation_prompt_are_known() -> None:
    source = "{{ bos_token }}{% if add_generation_prompt %}A:{% endif %}{{ eos_token }}"
    assert render(source) == "<s>A:</s>"


def test_blocks_leave_no_white_space() -> None:
    assert (
        render(
            "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n{% endif %}\n{% endfor %}"
        )
        == "Hello <b>\n"
    )


def test_helpers_follow_hugging_face() -> None:
    assert render("{{ messages | tojson }}") == json.dumps(HELLO)
    assert render("{{ {'b': 'é<', 'a': 1} | tojson(sort_keys=true) }}") == '{"a": 1, "b": "é<"}'
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop) == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hello <b>"
    assert render("{{ tools is none and documents is none }}") == "True"


def test_what_a_template_raises_is_told() -> None:
    with pytest.raises(InvalidSpec, match="refuses them: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content }}",
        "{{ nothing.at.all }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_an_error_in_a_template_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidSpec, match="messages: the model's chat template refuses"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__code__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__}' | format)(1) }}",
        "{{ messages.__class__.__base__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages | attr('__class__') | attr('__base__') }}",
    ],
)
def test_a_malicious_template_reaches_nothing(source: str) -> None:
    try:
        text = render(source)
    except InvalidSpec:
        return
    assert "class" not in text
    assert "builtin" not in text
    assert "uid=" not in text


def test_a_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(InvalidSpec, match="chat template: line 2"):
        ChatTemplate("a\n{% if %}", special_texts={})


def folder_with(tmp_path: Path, *, config: object = None, jinja: str | None = None) -> Path:
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": config}))
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "jinja", "expected"),
    [
        ("one", None, "one"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], None, "d"),
        (None, "from file", "from file"),
        ("one", "from file", "from file"),
    ],
)
def test_templates_come_in_three_forms(
    tmp_path: Path, config: object, jinja: str | None, expected: str
) -> None:
    folder = folder_with(tmp_path, config=config, jinja=jinja)
    template = load_chat_template(folder, special_texts={})
    assert template is not None
    assert template.render([]) == expected


def test_a_folder_may_have_no_template(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path, special_texts={}) is None


@pytest.mark.parametrize(
    "config", [7, [{"name": "default"}], ["text"], [{"name": "rag", "template": "x"}, 3]]
)
def test_a_template_of_another_form_is_invalid(tmp_path: Path, config: object) -> None:
    with pytest.raises(InvalidSpec, match="chat_template: expected"):
        load_chat_template(folder_with(tmp_path, config=config), special_texts={})
