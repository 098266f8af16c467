"""Keys of a group: their order, their characters, and their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.protocol.errors import ValidationError

KEYS = GroupKeys("/root")
PARTS = st.text(st.characters(min_codepoint=0x24, max_codepoint=0x2FF), min_size=1)


def test_keys():
    assert KEYS.prefix == "/root/"
    assert KEYS.member("zone", "suffix") == "/root/members/zone#suffix"
    assert KEYS.item("a/shard") == "/root/items/a/shard"
    assert KEYS.assignment("a/shard", "zone", "suffix", 12) == "/root/assign/a/shard#zone#suffix#12"


@pytest.mark.parametrize("root", ["", "/", "root", "/root/", "/a//b", "/a/../b", "//root"])
def test_roots_that_are_refused(root):
    with pytest.raises(ValidationError, match="absolute, clean path"):
        GroupKeys(root)


@pytest.mark.parametrize("character", ["\x00", " ", "!", '"', "#"])
def test_parts_have_no_character_up_to_the_separator(character):
    part = f"ab{character}"
    for build in (
        lambda: KEYS.member(part, "suffix"),
        lambda: KEYS.member("zone", part),
        lambda: KEYS.item(part),
        lambda: KEYS.assignment(part, "zone", "suffix", 0),
        lambda: KEYS.assignment("item", part, "suffix", 0),
        lambda: KEYS.assignment("item", "zone", part, 0),
    ):
        with pytest.raises(ValidationError, match=r"invalid char <= '#' \(ind 2 of "):
            build()


@given(st.lists(st.tuples(PARTS, PARTS, PARTS, st.integers(0, 9)), max_size=8))
def test_keys_order_as_their_parts(parts):
    keys = [KEYS.assignment(*each) for each in sorted(parts)]
    assert keys == sorted(keys)
    split = [KEYS.split(key) for key in keys]
    assert split == [["assign", *of, str(slot)] for *of, slot in sorted(parts)]


def test_members_order_by_zone():
    members = [("11", "z"), ("1111", "b"), ("111", "a"), ("22", "a"), ("11", "a")]
    keys = sorted(KEYS.member(*each) for each in members)
    assert [KEYS.split(key) for key in keys] == [["members", *each] for each in sorted(members)]


@given(st.tuples(*[st.text(st.sampled_from('!$a"\udcff'))] * 3, st.text("09²", min_size=1)))
def test_keys_that_are_split_can_be_built(parts):
    """A leader builds keys of what it has read."""
    try:
        split = KEYS.split("/root/assign/" + "#".join(parts))
    except ValidationError:
        return
    again = KEYS.assignment(*split[1:])
    assert KEYS.split(again) == split
    again.encode()
