import pytest

from slm_lab.errors import SpecError
from slm_lab.spec.files import find_file, pick, read_file, spec_files


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(tmp_path, content, name="a.json"):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"url": "http://x//,]", "b": [1, 2]}}',
        '\ufeff{"a": {"url": "http://x//,]", "b": [1, 2]}}',
        '// first\n{"a": {"url": "http://x//,]", /* "c": 3 */ "b": [1, 2, ], }, // last\n}',
        "{a: {url: 'http://x//,]', b: [+1, 0x2]}}",
        '{"$schema": "spec.schema.json", "a": {"url": "http://x//,]", "b": [1, 2]}}',
    ],
)
def test_json_is_read_with_comments_trailing_commas_and_what_else_json5_allows(tmp_path, text):
    assert read_file(write(tmp_path, text)) == {"a": {"url": "http://x//,]", "b": [1, 2]}}


def test_yaml_is_read_with_anchors_and_exponents(tmp_path):
    text = "a: &a {max_frame: 1e6, lr: 1.0e-3}\nb:\n  <<: *a\n  lr: 1\nc: {<<: *a}\n"
    a = {"max_frame": 1e6, "lr": 1e-3}
    assert read_file(write(tmp_path, text, "a.yaml")) == {"a": a, "b": {"max_frame": 1e6, "lr": 1}, "c": a}


def test_a_yaml_block_that_overrides_what_it_merges_can_be_merged_itself(tmp_path):
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b}\nd: {<<: *b}\n"
    assert read_file(write(tmp_path, text, "a.yml"))["d"] == {"x": 2}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "a.json: the file is empty"),
        ("a.json", " \n", "a.json: the file is empty"),
        ("a.json", "[1]", "a.json: holds a list; a spec file is a block"),
        (
            "a.json",
            '{"a": 1,\n "b": {"c": 1,\n "c": 2}}',
            "a.json: the key 'c' is given twice in one block (lines 2 and",
        ),
        ("a.json", "{a: 1,\n a: 2}", "a.json: the key 'a' is given twice in one block (lines 1 and 2)"),
        ("a.json", '{"a": 1,\n "b": ]}', "a.json:2:7: not JSON: "),
        ("a.json", '// c\n{"a": 1,\n "b": ]}', "a.json:3:7: not JSON: "),
        ("a.json", '{"a": 1,\n "b": [1,', "a.json:2:10: not JSON: the file ends in the middle"),
        ("a.json", "{'a': 1,\n 'b': }", "a.json:2:7: not JSON: "),
        ("a.json", b'{"a":\n "\xff"}', "a.json:2:3: is not UTF-8 text"),
        ("a.json", "[" * 100_000, "a.json: nested too deeply to be a spec"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "a.json: not JSON: Exceeds the limit"),
        ("a.yaml", "", "a.yaml: the file is empty"),
        ("a.yaml", "- 1", "a.yaml: holds a list"),
        ("a.yaml", "a: 1\nb: {c: 1, c: 2}", "a.yaml:2:11: not YAML: the key 'c' is given twice in one block"),
        ("a.yaml", "a: [1,", "a.yaml:1:7: not YAML: "),
        ("a.yaml", "a: 2024-99-99", "a.yaml: not YAML: month"),
        ("a.yaml", "a: !!python/object:os.system x", "a.yaml:1:4: not YAML: could not determine a constructor"),
        ("a.yaml", "1: {}", "a.yaml: the spec name 1 must be a string"),
        ("a.yaml", "[" * 5000, "a.yaml: nested too deeply to be a spec"),
        ("a.yaml", "a: \x07", "a.yaml: not YAML: unacceptable character"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(tmp_path, name, content, message):
    with pytest.raises(SpecError) as caught:
        read_file(write(tmp_path, content, name))
    assert str(caught.value).startswith(message)


def test_a_file_is_found_as_given_or_under_spec(tmp_path):
    write(tmp_path, "{}", "spec/demo.json")
    assert find_file("demo.json").as_posix() == "spec/demo.json"
    assert find_file("spec/demo.json").as_posix() == "spec/demo.json"
    assert [file.as_posix() for file in spec_files()] == ["spec/demo.json"]


@pytest.mark.parametrize("path", ["spec/demo.jsn", "demo.jsno", "Demo.json5"])
def test_a_missing_file_names_the_nearest(tmp_path, path):
    write(tmp_path, "{}", "spec/demo.json")
    with pytest.raises(SpecError, match=r"did you mean 'spec/demo\.json'"):
        find_file(path)


@pytest.mark.parametrize("path", [".", "nowhere/x.json", "x" * 5000, "a\0b", ""])
def test_what_cannot_be_a_file_is_refused(path):
    with pytest.raises(SpecError):
        find_file(path)
    with pytest.raises(SpecError):
        read_file(path)


def test_an_unknown_spec_name_lists_the_names_and_the_nearest():
    with pytest.raises(SpecError) as caught:
        pick({"dqn_cartpole": {}, "ppo_cartpole": {}}, "dqn_cartpol", "spec/demo.json")
    message = (
        "spec/demo.json: no spec named 'dqn_cartpol'; did you mean 'dqn_cartpole'? it has: dqn_cartpole, ppo_cartpole"
    )
    assert str(caught.value) == message


def test_a_spec_without_a_name_is_told_how_to_get_one():
    with pytest.raises(SpecError, match="holds one spec without a name"):
        pick({"agent": {}, "env": {}}, "x", "a.json")
