import json
import re

import pytest

from slm_lab.spec import json_schema, registry


def test_every_reference_leads_to_a_definition():
    schema = json_schema.build()
    used = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)))
    assert used == set(schema["$defs"])


def test_every_name_has_a_branch_that_its_name_chooses():
    definitions = json_schema.build()["$defs"]
    for kind, key in (("algorithm", "name"), ("memory", "name"), ("net", "type")):
        branches = [branch.get("$ref") for branch in definitions["AgentSpec"]["properties"][kind]["oneOf"]]
        for name in registry.names(kind):
            assert f"#/$defs/{kind}.{name}" in branches
            block = definitions[f"{kind}.{name}"]
            assert block["properties"][key]["const"] == name
            assert key in block["required"]


def test_every_key_of_every_block_is_documented():
    for place, block in json_schema.build()["$defs"].items():
        for key, field in block.get("properties", {}).items():
            assert field.get("description"), f"{place}.{key}"


def test_a_number_may_be_written_as_text_where_the_loader_takes_it():
    size = json_schema.build()["$defs"]["memory.Replay"]["properties"]["max_size"]
    assert size["type"] == ["integer", "string"]
    assert [bool(re.search(size["pattern"], text)) for text in ("1e6", "100", "many")] == [True, True, False]


@pytest.mark.parametrize(("block", "without"), [("memory", {"Random"}), ("net", {"Random", "MPC"})])
def test_algorithms_that_learn_require_a_memory_and_a_net(block, without):
    rules = json_schema.build()["$defs"]["AgentSpec"]["allOf"]
    rule = next(rule for rule in rules if rule["then"] == {"required": [block]})
    learning = rule["if"]["properties"]["algorithm"]["properties"]["name"]["enum"]
    assert set(registry.names("algorithm")) - set(learning) == without


def test_the_spec_s_name_is_no_key_of_the_spec():
    assert "name" not in json_schema.build()["$defs"]["Spec"]["properties"]
