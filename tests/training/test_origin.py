"""Where a head comes from, without anything of the machine on which it was trained."""

from __future__ import annotations

from specframe.training.origin import command, portable_tree


def test_a_command_forgets_where_files_are() -> None:
    given = [
        "/a/b/__main__.py",
        "task.answers=/srv/data/a.jsonl",
        "x=[~/p/q,/r/s]",
        "prompts=rel/p.txt",
    ]
    portable = command(given)
    assert portable == [
        *("python", "-m", "specframe", "task.answers=a.jsonl", "x=[q,s]", "prompts=rel/p.txt")
    ]
    assert command(portable) == portable
    assert command(["x", "target.path=package://smollm2"])[3:] == ["target.path=package://smollm2"]


def test_a_tree_forgets_where_its_head_and_prompts_were() -> None:
    tree = {
        "drafter": {"name": "eagle", "path": "/a/head"},
        "prompts": "/b/p.jsonl",
        "paths": [[0]],
    }
    assert portable_tree(tree) == {"drafter": "eagle", "prompts": "p.jsonl", "paths": [[0]]}
    assert portable_tree({**tree, "prompts": None})["prompts"] is None
