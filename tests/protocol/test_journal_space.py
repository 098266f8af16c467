"""Trees of journal specifications, and their YAML form."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.go.text import duration_nanoseconds
from gazette_aio.protocol.spaces import reader
from tests import extent, golden
from tests.known_differences import SORTED_SPECS
from tests.protocol.support import error_of, labels, spec, without_empty


def load(section: str) -> list[dict]:
    cases = golden.load("specs_yaml.json")[section]
    assert cases
    return cases


def test_algebra_of_specs():
    for case in load("journal_spec_ops"):
        lhs, rhs = spec(case["a"]), spec(case["b"])
        for name, operation in (
            ("union", pb.union_journal_specs),
            ("intersect", pb.intersect_journal_specs),
            ("subtract", pb.subtract_journal_specs),
        ):
            assert without_empty(operation(lhs, rhs)) == without_empty(spec(case[name])), name
        assert (lhs, rhs) == (spec(case["a"]), spec(case["b"]))


def test_documents_which_are_applied():
    for case in load("journals_apply"):
        error = error_of(pb.load_journal_space, case["yaml"], source="x.yaml", validate=False)
        assert (error is None) == ("yaml_error" not in case), (case["note"], error)
        if error is not None:
            assert error.startswith("x.yaml:")
            continue
        root = pb.load_journal_space(case["yaml"], validate=False)
        error = error_of(root.validate)
        if case["note"] in SORTED_SPECS:
            assert case.get("tree_error") or case["request_error"], case["note"]
            assert (error, error_of(pb.validate, root.to_apply_request())) == (None, None)
            continue
        assert error == case.get("tree_error"), case["note"]
        if error is not None:
            located = error_of(pb.load_journal_space, case["yaml"], source="x.yaml")
            assert located is not None
            assert located.startswith("x.yaml:")
            assert located.endswith(f": {error}")
            continue
        request = root.to_apply_request()
        expected = [
            pb.ApplyRequest.Change.FromString(base64.b64decode(change["proto"]))
            for change in case["changes"]
        ]
        assert list(map(without_empty, request.changes)) == list(map(without_empty, expected))
        assert error_of(pb.validate, request) == case["request_error"]
        # The same comes of specifications which are pushed down for good.
        root.push_down()
        assert root.to_apply_request() == request
        assert pb.load_journal_space(pb.dump_journal_space(root)).to_apply_request() == request


def listing(journals: list[dict]) -> pb.ListResponse:
    return pb.ListResponse(
        journals=[
            pb.ListResponse.Journal(
                spec=pb.JournalSpec.FromString(base64.b64decode(journal["proto"])),
                mod_revision=journal["mod_revision"],
            )
            for journal in journals
        ]
    )


def test_hoisted_listings():
    for case in load("journals_hoist"):
        response = listing(case["journals"])
        root = pb.Node.from_list_response(response)
        assert pb.dump_journal_space(root) == case["yaml"]
        assert response == listing(case["journals"])
        loaded = pb.load_journal_space(case["yaml"], validate=bool(case["journals"]))
        assert pb.dump_journal_space(loaded) == case["yaml"]


def test_patches():
    for case in load("journals_patch"):
        root = pb.load_journal_space(case["yaml"])
        for patch in case["patches"]:
            node = pb.load_journal_space(patch["yaml"], validate=False)
            if "panics" in patch:
                # A journal whose name begins with that of another; see below.
                copy = pb.load_journal_space(pb.dump_journal_space(root))
                assert copy.patch(node).name == node.name
                copy.validate()
                continue
            patched = root.patch(node)
            assert patched.name == node.name
            assert patched.patched
        assert pb.dump_journal_space(root) == case["patched_yaml"]
        root.mark_unpatched_for_deletion()
        assert pb.dump_journal_space(root) == case["unpatched_marked_yaml"]


@pytest.mark.parametrize(
    ("yaml", "error"),
    [
        ("name: a/\nrevision: 3\nchildren: [{name: a/one}]", "x:1: unexpected Revision (3)"),
        ("name: a/", "x:1: expected one or more Children"),
        ("", "x:1: expected one or more Children"),
        ("{}", "x:1: expected one or more Children"),
        (
            "name: a/\nchildren:\n- name: b/one",
            "x:3: expected parent Name to prefix child (a/ vs b/one)",
        ),
        (
            "children:\n- name: a/one\n- name: a/one",
            "x:3: expected Children to be ordered (ind 1; a/one vs a/one)",
        ),
        (
            "children:\n- name: a/\n  children:\n  - name: a/x y",
            "x:4: Name: not a valid token (a/x y)",
        ),
        (
            "name: a/one\nchildren: [{name: a/one/two}]",
            "x:1: expected no Children with non-directory Node (a/one)",
        ),
        (
            "name: a/b\nfragment:\n  lenght: 5",
            "x:3: fragment.lenght: unknown key: did you mean 'length'?",
        ),
        ("name: a/b\nname: a/b", "x:2: name: repeated key"),
        (
            "children:\n- name: a/bc\n  fragment: {length: 1e99}",
            'x:3: children[0].fragment.length: expected an integer, found "1e99"',
        ),
        (
            "children:\n- name: a/bc\n  fragment: {length: 1e+99}",
            "x:3: children[0].fragment.length: integer doesn't fit 64 bits",
        ),
        ("replication: 2147483648", "x:1: replication: integer doesn't fit 32 bits"),
        ("replication: 2.5", 'x:1: replication: expected an integer, found "2.5"'),
        ("replication: '3'", 'x:1: replication: expected an integer, found "3"'),
        ("replication: true", 'x:1: replication: expected an integer, found "true"'),
        ("replication: [1]", "x:1: replication: expected an integer, found a list"),
        ("flags: -1", "x:1: flags: integer doesn't fit 32 bits"),
        ("delete: 1", 'x:1: delete: expected true or false, found "1"'),
        ("labels: {a: b}", "x:1: labels: expected a list, found a mapping"),
        ("labels: [x]", 'x:1: labels[0]: expected a mapping, found "x"'),
        ("labels: [{name: [x]}]", "x:1: labels[0].name: expected a string, found a list"),
        ("fragment: 5", 'x:1: fragment: expected a mapping, found "5"'),
        ("fragment:\n  stores: s3://b/", 'x:2: fragment.stores: expected a list, found "s3://b/"'),
        (
            "fragment:\n  retention: 1d",
            'x:2: fragment.retention: time: unknown unit "d" in duration "1d"',
        ),
        (
            "fragment:\n  retention: true",
            'x:2: fragment.retention: time: invalid duration "true"',
        ),
        (
            "suspend: {level: SOME}",
            'x:1: suspend.level: expected one of NONE PARTIAL FULL, found "SOME"',
        ),
        # An enum has no more bits, unlike the flags.
        ("suspend: {level: 4294967295}", "x:1: suspend.level: integer doesn't fit 31 bits"),
        (
            "fragment: {compression_codec: 4}",
            (
                "x:1: fragment.compression_codec: expected one of NONE GZIP ZSTANDARD "
                'SNAPPY GZIP_OFFLOAD_DECOMPRESSION, found "4"'
            ),
        ),
        ("flags: 4294967296", "x:1: flags: integer doesn't fit 32 bits"),
        ("? [a]\n: b", "x:1: expected a name as key"),
        ("<<: x", 'x:1: expected mappings to merge, found "x"'),
        ("<<: [{name: a}, x]", "x:1: expected mappings to merge, found a list"),
        ("name: *unknown", "x:1: found undefined alias 'unknown'"),
        ("children: &a [*a]", "x:1: nested too deeply, or within itself"),
        (
            "name: !!python/object/apply:os.system [true]",
            "x:1: name: tag tag:yaml.org,2002:python/object/apply:os.system is not allowed",
        ),
        ("name: !Ref x", "x:1: name: tag !Ref is not allowed"),
        (
            "name: a\n---\nname: b",
            "x:2: expected a single document in the stream: but found another document",
        ),
    ],
)
def test_errors_name_source_line_and_field(yaml: str, error: str):
    assert error_of(pb.load_journal_space, yaml, source="x") == error


def test_syntax_errors_name_the_line():
    with pytest.raises(pb.ValidationError, match=r"^specs\.yaml:3: "):
        pb.load_journal_space("name: a/\nchildren:\n\t- name: a/b", source="specs.yaml")
    with pytest.raises(pb.ValidationError, match=r"^<string>:\d+: "):
        pb.load_journal_space("name: [unclosed")


def test_spellings():
    root = pb.load_journal_space(
        """
        name: 123/45
        replication: 0b11
        labels:
        - {name: yes, value: 2021-01-01}
        - {name: "null", value: ~}
        fragment:
          length: 0x1_0000
          retention: 7_000
          flush_interval: -1h30m
        flags: 2
        max_append_rate: 010
        delete: off
        comment: null
        suspend:
        """,
        validate=False,
    )
    assert root.name == "123/45"
    assert root.spec.replication == 3
    assert root.spec.labels == labels([["null", ""], ["yes", "2021-01-01"]])
    assert root.spec.fragment.length == 0x10000
    assert duration_nanoseconds(root.spec.fragment.retention) == 7000
    assert duration_nanoseconds(root.spec.fragment.flush_interval) == -5400 * 10**9
    assert (root.spec.flags, root.spec.max_append_rate) == (2, 8)
    assert (root.delete, root.comment) == (False, "")
    assert root.spec.HasField("suspend")


def test_merged_mappings():
    root = pb.load_journal_space(
        """
        name: m/
        fragment: &f {length: 4096, compression_codec: NONE}
        children:
        - name: m/one
          fragment: {length: 8192, <<: *f}
        - name: m/two
          fragment:
            <<: [{length: 1024}, *f]
        """
    )
    one, two = root.children
    assert (one.spec.fragment.length, two.spec.fragment.length) == (8192, 1024)
    assert one.spec.fragment.compression_codec == two.spec.fragment.compression_codec == 1


def test_a_child_may_have_no_stores():
    yaml = (
        "name: a/\nfragment:\n  stores:\n  - s3://bucket/\nchildren:\n"
        "- name: a/none/\n  fragment:\n    stores: []\n  children:\n"
        "  - name: a/none/one\n  - name: a/none/two\n    fragment:\n      stores:\n      - gs://own/\n"
        "- name: a/some\n"
    )
    root = pb.load_journal_space(yaml)
    assert pb.dump_journal_space(root) == yaml
    changes = root.to_apply_request().changes
    stores = {change.upsert.name: list(change.upsert.fragment.stores) for change in changes}
    assert stores == {"a/none/one": [], "a/none/two": ["gs://own/"], "a/some": ["s3://bucket/"]}
    root.push_down()
    assert root.to_apply_request().changes == changes
    assert pb.load_journal_space(pb.dump_journal_space(root)).to_apply_request().changes == changes
    # A patch may take the stores away, too.
    patch = pb.load_journal_space("name: a/some\nfragment: {stores: []}")
    root.patch(patch)
    some = list(root.walk_terminal_nodes())[-1]
    assert list(some.spec.fragment.stores) == []
    root.hoist()
    by_name = {change.upsert.name: change.upsert for change in root.to_apply_request().changes}
    assert list(by_name["a/some"].fragment.stores) == []
    assert list(by_name["a/none/two"].fragment.stores) == ["gs://own/"]


def node(name: str, *children: pb.Node, **fields: object) -> pb.Node:
    delete = fields.pop("delete", None)
    return pb.Node(spec=pb.JournalSpec(name=name, **fields), delete=delete, children=[*children])


def test_push_down():
    root = node(
        "",
        node("aaa", replication=4),
        node(
            "shared-root/",
            node("shared-root/bar", delete=False, flags=1),
            node("shared-root/foo", replication=5),
            delete=True,
            replication=2,
        ),
        replication=3,
        flags=4,
    )
    changes = root.to_apply_request().changes
    assert [change.delete or change.upsert.name for change in changes] == [
        "aaa",
        "shared-root/bar",
        "shared-root/foo",
    ]
    assert (changes[0].upsert.replication, changes[0].upsert.flags) == (4, 4)
    assert (changes[1].upsert.replication, changes[1].upsert.flags) == (2, 1)
    assert changes[2].delete == "shared-root/foo"
    assert root.children[0].spec.flags == 0
    root.push_down()
    assert root.spec == pb.JournalSpec()
    assert root.children[1].delete is None
    assert [leaf.delete for leaf in root.walk_terminal_nodes()] == [None, False, True]


def test_hoist_of_deletion():
    root = node("a/", node("a/one", delete=True, flags=1), node("a/two", delete=True, flags=2))
    root.hoist()
    assert root.delete is True
    assert [child.delete for child in root.children] == [None, None]
    assert root.spec == pb.JournalSpec(name="a/")


def test_a_suspension_stays_with_its_journal():
    suspended = pb.JournalSpec(
        name="a/one", replication=2, suspend=pb.JournalSpec.Suspend(level="FULL", offset=7)
    )
    root = pb.Node(spec=pb.JournalSpec(name="a/"), children=[pb.Node(spec=suspended)])
    root.hoist()
    assert not root.spec.HasField("suspend")
    assert root.spec.replication == 2
    assert root.children[0].spec == pb.JournalSpec(name="a/one", suspend=suspended.suspend)
    assert root.to_apply_request().changes[0].upsert == suspended


def test_a_directory_is_no_patch():
    root = node("root/", node("root/aaa", replication=1))
    with pytest.raises(pb.ValidationError, match="expected a journal to patch"):
        root.patch(node("root/"))


@pytest.mark.parametrize("name", ["root/aaa-more", "root/aaa/more"])
def test_a_patch_may_begin_with_the_name_of_another_journal(name: str):
    below = node("root/", node("root/aaa", replication=1), node("root/bbb", replication=2))
    alone = node("root/aaa", replication=1)
    for root in (below, alone):
        root.patch(node(name, replication=5))
        root.validate()
        found = {leaf.name: leaf.spec.replication for leaf in root.walk_terminal_nodes()}
        assert found["root/aaa"] == 1
        assert found[name] == 5
        root.patch(node(name, flags=1))
        assert len(list(root.walk_terminal_nodes())) == len(found)


def test_hoisting_keeps_what_directories_hold():
    root = pb.load_journal_space(
        """
        name: some/
        replication: 3
        delete: false
        labels: [{name: env, value: prod}]
        fragment: {stores: ["gs://shared/"]}
        children:
        - name: some/one
        - name: some/two/
          flags: O_RDONLY
          children:
          - {name: some/two/a, replication: 1}
          - {name: some/two/b, fragment: {stores: []}}
        """
    )
    changes = without_empty(root.to_apply_request())
    root.hoist()
    assert without_empty(root.to_apply_request()) == changes
    hoisted = pb.dump_journal_space(root)
    root.hoist()
    assert pb.dump_journal_space(root) == hoisted


@pytest.mark.slow
def test_a_listing_of_absurd_names_is_a_tree():
    # Listings aren't validated by name, and must not nest without limit.
    listing = pb.ListResponse()
    for depth in range(2000, 0, -1):
        listing.journals.add(spec=pb.JournalSpec(name="a/" * depth + "b"), mod_revision=1)
    root = pb.Node.from_list_response(listing)
    assert len(root.to_apply_request().changes) == 2000


def test_durations_out_of_range_survive_the_algebra():
    spec = pb.JournalSpec(name="a/journal")
    spec.fragment.retention.seconds = (1 << 63) - 1
    spec.fragment.retention.nanos = (1 << 31) - 1
    empty = pb.JournalSpec(name="a/journal")
    assert pb.union_journal_specs(empty, spec) == spec
    assert pb.intersect_journal_specs(spec, spec) == spec
    assert pb.subtract_journal_specs(spec, spec) == empty


names = st.lists(
    st.lists(st.sampled_from(["aa", "bb", "c-c", "d"]), min_size=3, max_size=5).map("/".join),
    min_size=1,
    max_size=8,
    unique=True,
).map(sorted)
some_labels = st.lists(
    st.sampled_from([("a1", "x"), ("a1", "y"), ("b1", ""), ("c1", "true"), ("c1", "12:30")]),
    unique=True,
).map(lambda pairs: labels([[*pair] for pair in sorted(pairs)]))
specs = st.builds(
    pb.JournalSpec,
    replication=st.integers(0, 3),
    labels=some_labels,
    flags=st.sampled_from([0, 1, 4, 35]),
    max_append_rate=st.sampled_from([0, 5, 1 << 40]),
    fragment=st.builds(
        pb.JournalSpec.Fragment,
        length=st.sampled_from([0, 1024, 2048]),
        compression_codec=st.sampled_from([0, 1, 4]),
        stores=st.lists(st.sampled_from(["s3://b/", "file:///"]), max_size=2),
        refresh_interval=st.integers(0, 2).map(
            lambda hours: pb.duration_proto(hours * 3600 * 10**9)
        ),
        path_postfix_template=st.sampled_from(["", "a: b #c", "{{ .Name }}", "x" * 200, "a " * 90]),
    ),
)
trees = names.flatmap(
    lambda listed: st.lists(specs, min_size=len(listed), max_size=len(listed)).map(
        lambda built: pb.ListResponse(
            journals=[
                pb.ListResponse.Journal(
                    spec=pb.union_journal_specs(pb.JournalSpec(name=name), spec), mod_revision=index
                )
                for index, (name, spec) in enumerate(zip(listed, built, strict=True), 1)
            ]
        )
    )
)


@pytest.mark.slow
@extent.examples(40)
@given(trees)
def test_a_hoisted_tree_applies_what_was_listed(response):
    root = pb.Node.from_list_response(response)
    root.validate()
    request = root.to_apply_request()
    listed = [(journal.spec, journal.mod_revision) for journal in response.journals]
    applied = [(change.upsert, change.expect_mod_revision) for change in request.changes]
    for (before, revision), (after, expected) in zip(listed, applied, strict=True):
        assert revision == expected
        assert without_empty(before) == without_empty(after)
    # The text form keeps it, and so does any order of hoisting and pushing down.
    text = pb.dump_journal_space(root)
    loaded = pb.load_journal_space(text)
    assert loaded == root
    assert pb.dump_journal_space(loaded) == text
    root.push_down()
    assert root.to_apply_request() == request
    root.hoist()
    assert root == loaded


scalar_texts = st.text(max_size=12) | st.sampled_from(
    [
        "y",
        "No",
        "~",
        "null",
        "0x1F",
        "1_000",
        "012",
        "1e+5",
        ".5",
        ".inf",
        "-.INF",
        "<<",
        "=",
        "1:30",
        "2021-01-02",
        "2021-01-02T03:04:05Z",
        "- x",
        "a: b",
        "#x",
        " x",
        "x ",
        "'",
        '"',
        "@x",
        "a\nb",
        "",
        "0b11",
        "0o17",
        "+1",
        "-",
        "!x",
        "&a",
        "*a",
        "%",
        "|",
        ">",
        "[",
        "{",
        "x" * 200,
        "é 日",
    ]
)


@given(scalar_texts)
def test_any_text_survives_yaml(text):
    if any(not char.isprintable() and char != "\n" for char in text) or text.startswith("\ufeff"):
        text = "".join(filter(str.isprintable, text)).strip("\ufeff")
    root = pb.Node(
        spec=pb.JournalSpec(
            name="a/bc", labels=pb.LabelSet(labels=[pb.Label(name="x", value=text)])
        ),
        comment=text,
    )
    loaded = pb.load_journal_space(pb.dump_journal_space(root), validate=False)
    assert loaded.spec == root.spec
    assert loaded.comment == text


def test_bombs_and_absurd_documents_are_refused():
    began = time.process_time()
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "excessive aliasing" in (error_of(pb.load_journal_space, "\n".join(lines)) or "")
    deep = "[" * 100_000
    assert "nested too deeply" in (error_of(pb.load_journal_space, deep) or "")
    deep = "\n".join("  " * i + "children:" + ("\n" + "  " * i + "-") for i in range(300))
    assert error_of(pb.load_journal_space, deep) is not None
    merges = "a: &a0 {}\n" + "\n".join(f"b{i}: &a{i + 1} {{<<: *a{i}}}" for i in range(50))
    assert error_of(pb.load_journal_space, merges) is not None
    assert time.process_time() - began < 5


def test_a_document_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "MAX_BYTES", 10)
    assert error_of(pb.load_journal_space, "name: a/very-long-name") == (
        "<string>:1: document of more than 10 bytes"
    )


@extent.examples(100)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "name: a/",
                "\n",
                "  ",
                "- ",
                "children:",
                "&a",
                "*a",
                "<<: ",
                "{",
                "}",
                "[",
                "]",
                ", ",
                "labels:",
                "fragment:",
                "length: ",
                "0x",
                "1e+3",
                "!!str ",
                "!x ",
                "'",
                '"',
                "\\ud800",
                "suspend: ",
                "level: ",
                "retention: ",
                "5m",
                "~",
                "---\n",
                "? ",
                ": ",
                "|\n",
                "#",
                "\x00",
            ]
        ),
        max_size=25,
    ).map("".join)
)
def test_any_text_is_a_tree_or_a_validation_error(text):
    error = error_of(pb.load_journal_space, text, source="fuzz")
    if error is not None:
        assert error.startswith("fuzz:")
    else:
        root = pb.load_journal_space(text)
        assert pb.load_journal_space(pb.dump_journal_space(root)) == root


@pytest.mark.slow
def test_ten_thousand_journals():
    journals = [
        {"spec": {"name": f"org/topic-{i // 100:03}/part-{i % 100:03}", "replication": 3}}
        for i in range(10_000)
    ]
    response = pb.ListResponse(journals=journals)
    began = time.process_time()
    root = pb.Node.from_list_response(response)
    text = pb.dump_journal_space(root)
    loaded = pb.load_journal_space(text)
    assert len(loaded.to_apply_request().changes) == 10_000
    assert time.process_time() - began < 8


@given(st.randoms(use_true_random=False))
def test_documents_may_have_any_order(rng):
    pairs = [["x", ""], ["y", "1"], ["y", "2"]]
    items = [f"{{name: {name}, value: '{value}'}}" for name, value in pairs]
    rng.shuffle(items)
    children = [
        "{name: a/one}",
        f"{{name: a/two, labels: [{', '.join(items)}]}}",
        "{name: b/, children: [{name: b/two}, {name: b/one}]}",
    ]
    rng.shuffle(children)

    request = pb.load_journal_space(f"children: [{', '.join(children)}]").to_apply_request()

    names = [change.upsert.name for change in request.changes]
    assert names == ["a/one", "a/two", "b/one", "b/two"]
    assert request.changes[1].upsert.labels == labels(pairs)
