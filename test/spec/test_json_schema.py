import json
import re

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
            assert field.get("description") or "$ref" in field or "anyOf" in field, f"{place}.{key}"


def test_the_spec_s_name_is_no_key_of_the_spec():
    assert "name" not in json_schema.build()["$defs"]["Spec"]["properties"]
