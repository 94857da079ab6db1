import json
from pathlib import Path

from slm_lab.spec.schema import EnvSpec

TEXT = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")


def test_every_key_is_told_with_its_default():
    for key, field in EnvSpec.model_fields.items():
        default = "" if field.is_required() else f"{json.dumps(field.default)} "
        assert f"| `{key}` | {default}|" in TEXT
