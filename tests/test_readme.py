"""The README says what works: its two commands, and an example whose names exist."""

import ast
import importlib
import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
COMMANDS = (
    "    python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e . && .venv/bin/splitveil demo\n",
    "    .venv/bin/pip install -q -c constraints.txt -e '.[test]' && .venv/bin/python -m pytest\n",
)


def test_both_set_up_commands_stand_there_to_the_letter() -> None:
    assert all(command in README for command in COMMANDS)


def test_every_name_of_the_example_exists() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    tree = ast.parse(example)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert hasattr(importlib.import_module(str(node.module)), alias.name), alias.name
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "splitveil":
            assert hasattr(importlib.import_module("splitveil"), node.attr), node.attr


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (Path(__file__).parent.parent / link).exists()]
    assert links
    assert missing == []
