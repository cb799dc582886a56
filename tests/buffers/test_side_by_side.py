"""Several lanes in caches of their own: every verb acts on its lane, and on no other."""

from __future__ import annotations

import random

import pytest
import torch

from specframe.buffers.side_by_side import SideBySide
from specframe.cache.dynamic import DynamicCache
from specframe.testing.caches import contents, put, write

CPU = torch.device("cpu")


def three_lanes() -> SideBySide:
    made = SideBySide([DynamicCache() for _ in range(3)])
    for lane in range(3):
        made.open(lane, columns=64, device=CPU)
    return made


def texts(made: SideBySide) -> list[list[int]]:
    return [contents(made.alone(lane)) for lane in range(3)]


def test_a_joint_step_commits_each_lanes_own_rows() -> None:
    """Rows are reserved together, and the accepted ones are moved lane by lane, in order."""
    made = three_lanes()
    for lane, text in enumerate(([1, 2], [3], [4, 5, 6])):
        put(made.alone(lane), text)
    sizes = [3, 1, 2]
    fresh = made.reserve(sizes)
    assert made.extents == [5, 2, 5]
    assert fresh.extent == 3
    assert fresh.columns.tolist() == [0, 1, 2, 0, 0, 1]
    slots = fresh.slots.split(sizes)
    for lane, tokens in enumerate(([11, 12, 13], [21], [31, 32])):
        write(made.alone(lane), tokens, slots[lane])
    accepted = torch.cat([slots[0][[0, 2]], slots[1], slots[2][[1]]])
    made.commit(accepted, [2, 1, 1], moved=[True, False, True])
    assert texts(made) == [[1, 2, 11, 13], [3, 21], [4, 5, 6, 32]]
    assert made.lengths == made.extents == [4, 2, 4]


def test_verbs_of_one_lane_leave_the_others() -> None:
    """Against lists, in random order."""
    made, expected = three_lanes(), [[], [], []]
    longest = [0, 0, 0]
    chance = random.Random(1)
    for turn in range(120):
        lane, verb = chance.randrange(3), chance.choice([*["put"] * 6, "truncate", "drop", "open"])
        if verb == "put":
            put(made.alone(lane), [turn])
            expected[lane].append(turn)
        elif verb == "truncate":
            del expected[lane][len(expected[lane]) // 2 :]
            made.truncate(lane, len(expected[lane]))
        elif verb == "drop":
            made.alone(lane).reserve([2])
            made.discard(lane)
        elif chance.random() < 0.2:
            tenancy = made.open(lane, columns=64, device=CPU)
            made.close(lane)
            assert tenancy.ended
            made.open(lane, columns=64, device=CPU)
            expected[lane] = []
        assert made.lengths == [len(text) for text in expected]
        longest = [max(most, len(text)) for most, text in zip(longest, expected, strict=True)]
    assert texts(made) == expected
    assert min(longest) > 5, "each lane held several tokens at some time"


def test_it_is_as_its_lanes_are() -> None:
    class Rounded(DynamicCache):
        lossy = "it rounds"

    made = SideBySide([Rounded(), Rounded()])
    assert (made.lossy, made.rollback, made.capacity) == ("it rounds", "truncate", None)
    made.alone(1).reach[0] = 9
    assert made.reach == [None, 9]
    with pytest.raises(IndexError):
        made.alone(2)
    with pytest.raises(AssertionError, match="holds one lane"):
        DynamicCache().alone(1)
