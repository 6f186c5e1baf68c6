"""Reading and writing files: all problems at once, near misses named, nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.strict import (
    CamelModel,
    StrictModel,
    parse,
    read_json,
    read_yaml,
    write_json,
)


class Leaf(CamelModel):
    num_tokens: int = Field(ge=1)
    share: float = 0.5


class Root(CamelModel):
    leaf_part: Leaf
    leaves: tuple[Leaf, ...] = ()
    by_name: dict[str, Leaf] = Field(default_factory=dict)


class Plain(StrictModel):
    batch_size: int


def problems(model: type[StrictModel], data: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(InvalidSpec) as caught:
        parse(model, data, source="here")
    assert str(caught.value).startswith("here: ")
    return caught.value.problems


def test_an_unknown_field_is_named_with_the_nearest_right_one() -> None:
    found = problems(Root, {"leafPart": {"numTokens": 1, "num_tokens": 2}})
    assert found == ("leafPart.num_tokens: unknown field; did you mean 'numTokens'?",)
    found = problems(Plain, {"batch_size": 1, "batchsize": 2})
    assert found == ("batchsize: unknown field; did you mean 'batch_size'?",)


def test_an_unknown_field_like_no_other_lists_the_known_ones() -> None:
    found = problems(Root, {"leafPart": {"numTokens": 1}, "zzz": 2})
    assert found == ("zzz: unknown field; known fields: byName, leafPart, leaves",)


def test_unknown_fields_inside_lists_and_maps_are_compared_with_their_own_model() -> None:
    found = problems(
        Root,
        {
            "leafPart": {"numTokens": 1},
            "leaves": [{"numTokens": 1, "shares": 1}],
            "byName": {"x": {"numTokens": 1, "shares": 1}},
        },
    )
    assert found == (
        "leaves.0.shares: unknown field; did you mean 'share'?",
        "byName.x.shares: unknown field; did you mean 'share'?",
    )


def test_all_problems_are_listed_with_their_paths_and_values() -> None:
    found = problems(Root, {"leafPart": {"numTokens": 0, "share": float("nan")}, "leaves": [{}]})
    assert found == (
        "leafPart.numTokens: Input should be greater than or equal to 1 (given: 0)",
        "leafPart.share: Input should be a finite number (given: nan)",
        "leaves.0.numTokens: Field required",
    )


def test_a_long_value_is_shortened() -> None:
    (problem,) = problems(Plain, {"batch_size": "x" * 500})
    assert len(problem) < 160


def test_models_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Plain(batch_size=1).batch_size = 2  # type: ignore[misc]  # this is what is tested


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    root = Root(leaf_part=Leaf(num_tokens=3), by_name={"x": Leaf(num_tokens=4, share=0.1)})
    path = tmp_path / "new" / "root.json"
    write_json(path, root)
    write_json(path, root)
    assert '"numTokens": 3' in path.read_text()
    assert read_json(Root, path) == root
    assert [each.name for each in path.parent.iterdir()] == ["root.json"]


def test_a_file_is_replaced_not_overwritten(tmp_path: Path) -> None:
    """A reader that has the old file open goes on seeing all of it."""
    path = tmp_path / "plain.json"
    write_json(path, Plain(batch_size=1))
    with path.open() as reader:
        write_json(path, Plain(batch_size=2))
        assert '"batch_size": 1' in reader.read()
    assert read_json(Plain, path).batch_size == 2


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(Unavailable, match=r"cannot write .* Free space or choose another"):
        write_json(tmp_path / "file" / "root.json", Plain(batch_size=1))
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unavailable, match="cannot write"):
        write_json(tmp_path / "folder", Plain(batch_size=1))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1", "not YAML: "),
        ("- 1\n", "expected a mapping at the top"),
        ("", "expected a mapping at the top"),
        ("a: 1\n---\nb: 2\n", "holds 2 YAML documents; give each a file of its own"),
        ("a: 1\nb: {c: 1, c: 2}\n", "key 'c' is given twice .*line 2, column 11"),
        ("\xff", "not UTF-8 text"),
        ("a: \x07", "not YAML: "),
        ("a: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
        ("? [1]\n: {}\n? {b: 1}\n: 2", "not YAML: .*unhashable key"),
    ],
)
def test_yaml_that_cannot_be_read_says_why(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSpec, match=problem):
        read_yaml(path)


def test_yaml_merge_keys_override(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\n")
    assert read_yaml(path)["mine"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not JSON: "), ("[1]", "expected a JSON object"), ('{"batch_size": 1, "batch_size": 2}', "given twice")],
)  # fmt: skip
def test_json_that_cannot_be_read_says_why(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InvalidSpec, match=problem):
        read_json(Plain, path)


@pytest.mark.parametrize("name", ["none.json", "."])
def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unavailable, match=r"cannot read .*Check the path\."):
        read_json(Plain, tmp_path / name)
