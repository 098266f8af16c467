"""Differences between this package and the golden data, with the reason of each.

A test which meets one of these must check that the difference is still there, and fail once it's
gone. Keys name the golden file; values map the case to its reason.
"""

from __future__ import annotations

# Traces of sequencer.json, by index. A replay of Gazette delivers rows with a zero clock again,
# which it delivered when they were first read, and then forgets the producer's last clock.
ZERO_CLOCK_REPLAY = "zero-clock rows are not delivered again by a replay"
SEQUENCER_TRACES: dict[int, str] = dict.fromkeys(
    (3, 14, 28, 36, 62, 69, 71, 80, 102, 103, 113, 119, 124, 129, 183, 192, 203, 226),
    ZERO_CLOCK_REPLAY,
)

# Feeds of sequencer.json to replays, by note, of a producer whose clocks go back. Gazette's replays
# deliver messages that its ring has rolled back, or dropped as duplicates.
REPLAY_FEEDS = {
    "replay holds a message past the acknowledged clock": "replays deliver what memory would have",
}

# Sections of golden files whose JSON is compared as decoded, and not by its bytes: the reference
# escapes <, >, &, U+2028 and U+2029, which other encoders don't.
JSON_ESCAPES = "other escapes of equal JSON"
FRAMING_NDJSON_MARSHAL = JSON_ESCAPES
PUBLISHER_JSON_BODIES = JSON_ESCAPES

# Streams of framing_ndjson.json, by (index, line). The reference repairs invalid UTF-8 within a
# document, which is a decode error here.
INVALID_UTF8 = "invalid UTF-8 is refused rather than repaired"
FRAMING_NDJSON_UNPACK: dict[tuple[int, int], str] = {(13, 0): INVALID_UTF8}

# Records of framing_csv.json, by (index, number). Go's reader makes them `\n`, and so loses content.
CRLF_IN_QUOTES = r"`\r\n` within a quoted field is read as it's written"
FRAMING_CSV_UNMARSHAL: dict[tuple[int, int], str] = dict.fromkeys(
    (
        *((9, 0), (30, 0), (32, 1), (34, 2), (34, 3), (35, 3), (40, 1), (41, 3), (50, 1), (62, 1)),
        *((63, 1), (66, 3), (79, 3), (88, 0), (88, 2)),
    ),
    CRLF_IN_QUOTES,
)

# Scenarios of broker_scenarios.json, which a broker of this package answers otherwise on purpose.
BROKER_SCENARIOS: dict[str, str] = {
    "fragment_nested_journal": (
        "files of a journal below another one aren't indexed as fragments of the upper one, "
        'unless nested_journals="shared"'
    ),
    **dict.fromkeys(
        ("apply_invalid_postfix_unterminated", "apply_invalid_postfix_unknown_field"),
        "refusals of templates don't have the words of Go's template package",
    ),
}

# Documents of specs_yaml.json, by note, which this package accepts.
_SORTED = "children, labels and sources of documents may be in any order"
SORTED_SPECS: dict[str, str] = dict.fromkeys(
    ("children out of order", "labels out of order", "sources out of order"), _SORTED
)

# Templates of fragments.json which Gazette's broker evaluates, and the embedded broker refuses.
_PATH = "paths beyond those of docs/broker.md are refused"
_LANGUAGE = "of Go's template language, actions that name a value are known"
PATH_POSTFIXES: dict[str, str] = {
    **dict.fromkeys(
        (
            "{{ .Spool.FirstAppendTime.Unix }}",
            "{{ .Spool.FirstAppendTime.Hour }}-{{ .Spool.FirstAppendTime.Minute }}",
            "{{ .Spool.FirstAppendTime.Month }}",
            "{{ .Spool.FirstAppendTime.Weekday }}",
            "{{ .Spool.FirstAppendTime }}",
            'all={{ .Spool.Registers.ValuesOf "region" }}',
            "{{ .Spool.Fragment.Journal }}",
            "rep={{ .Replication }}",
            "{{ .Flags }}",
            "{{ .MaxAppendRate }}",
            "{{ .Labels }}",
        ),
        _PATH,
    ),
    **dict.fromkeys(
        (
            '{{ printf "%016x" .Spool.Begin }}',
            '{{ if eq (.Spool.Registers.ValueOf "region") "us" }}us{{ else }}other{{ end }}',
            '{{ with .Spool.Registers.ValueOf "region" }}r={{ . }}{{ end }}',
            "{{- /* note */ -}} x ",
            '{{ "x" }}',
        ),
        _LANGUAGE,
    ),
    "{{ .Fragment.Length }}": "refused when it's applied, not each time when a fragment is written",
    '{{ .Spool.FirstAppendTime.Format "2006-01-02T15:04:05.999999999" }}': (
        "times of appends are known to the microsecond"
    ),
}

# Templates of validation.json which `validate()` accepts.
_BROKERS_CHECK = "brokers check templates; clients only see whether actions are closed"
VALIDATED_TEMPLATES: dict[str, str] = dict.fromkeys(
    (
        "x/{{ .Spool.FirstAppendTime.Format }}",
        "{{ .NoSuchField }}",
        "{{ end }}",
        "{{ .Spool.Nope }}",
    ),
    _BROKERS_CHECK,
)

# Parts of texts in broker_scenarios.json, and what a broker of this package has in their place.
BROKER_TEXTS: dict[str, tuple[str, str]] = {
    "${file_root}/": ("", "paths in errors are relative to the file root, which clients don't see")
}

# How texts of refusals begin in broker_scenarios.json, and patterns of ours: tokens, queries and JSON
# that are malformed are refused in the same way, in other words.
BROKER_REFUSALS: dict[str, str] = {
    "verifying Authorization: token is malformed: ": "^verifying Authorization: token is malformed: ",
    "verifying Authorization: token signature is invalid: ": (
        "^verifying Authorization: token signature is invalid: "
    ),
    'schema: error converting value for "block"': "^block must be true or false ",
    'schema: error converting value for "offset"': "^offset must be an integer ",
    'schema: invalid path "extra"': "^a read takes offset and block ",
    'schema: invalid path "offset"': "^an append takes no query",
    'Changes[0].Upsert.Fragment.Stores[0]: parse ":garbage: :x": ': (
        '^Changes.0..Upsert.Fragment.Stores.0.: parse ":garbage: :x": '
    ),
    '{"code":3,"message":"invalid character ': '^{"code":3,"message":"invalid protocol',
}

# Groups of shard_scenarios.json which aren't replayed.
SHARD_SCENARIO_GROUPS: dict[str, str] = {
    "gateway": "members serve no JSON gateway, which is optional: their port speaks gRPC "
    "alone, and `gazette-aio shards list` and `stat` print JSON",
}

# Scenarios of shard_scenarios.json which members of this package answer otherwise: where the first
# difference is, and its reason.
_HINTS_ONCE = "hints that are the first backup already aren't rotated again"
_VALIDATED = "requests are validated"
SHARD_SCENARIOS: dict[str, tuple[str, str]] = {
    "apply_bytes": ("step 1: $.hex", "empty messages are left out of stored specs"),
    "raw_unknown_fields": ("step 2: $.hex", "unknown fields of specs are kept"),
    "stat_unknown": ("step 1: $.response", _VALIDATED),
    "stat_offsets": ("step 8: $.response", _VALIDATED),
    "hints_unknown": ("step 1: $.response", _VALIDATED),
    "hints_rotate": ("step 13: $.keys", _HINTS_ONCE),
    "etcd_status_values": ("step 7: $.hex", "texts of failed shards are our own, as below"),
    "etcd_unassign": ("step 9: $.keys", _HINTS_ONCE),
    "auth_stat_proxied": ("step 6: $.error", "a forwarded Stat is signed with the caller's claims"),
    "gazctl_apply_invalid": ("step 4: $.fails", "an empty file of shards is refused"),
}

# How texts of failed shards begin in shard_scenarios.json, and patterns of what they begin with here:
# they name the exception, and the message or journal, and no functions of Gazette's code. They may go
# on with the journal and the remedy.
_PLACE = r"\S+ at offset \d+( \(UUID [-0-9a-f]{36}\))?"
SHARD_TEXTS: dict[str, str] = {
    "beginRecovery: GetHints: ": "recovery: fetching hints: HintsError: ",
    "beginRecovery: fetching log spec: ": r"recovery: specification of \S+: RecoveryError: ",
    "beginRecovery: ": "recovery: RecoveryError: ",
    "completeRecovery: app.NewStore: ": r"new_store\(\): RuntimeError: ",
    "completeRecovery: store.RestoreCheckpoint: ": r"restore_checkpoint\(\): RuntimeError: ",
    "runTransactions: app.BeginTxn: ": r"begin_txn\(\): RuntimeError: ",
    "runTransactions: app.ConsumeMessage: ": rf"{_PLACE}: consume_message\(\): RuntimeError: ",
    "runTransactions: txnStartCommit: app.FinalizeTxn: ": r"finalize_txn\(\): RuntimeError: ",
    "runTransactions: store.StartCommit: ": r"commit of the store: \w+: ",
    "runTransactions: readMessage: determining framing: ": (
        r"source \S+: UnrecognizedContentTypeError: "
    ),
    "runTransactions: readMessage: fetching journal spec: ": (
        "sources: JournalNotFoundError: fetching journal spec: "
    ),
    "runTransactions: readMessage: newMessage: ": r"adapter\(\) of \S+: RuntimeError: ",
    "runTransactions: readMessage: framing.Unmarshal(offset 0): ": (
        r"\S+ at offset 0( \(UUID .*\))? can't be decoded: "
    ),
    "runTransactions: readMessage: framing.Unmarshal(offset 10): ": (
        r"\S+ at offset 10( \(UUID .*\))? can't be decoded: "
    ),
    "runTransactions: ": "",
}

# Playbacks of recoverylog_playback.json, by index.
RECOVERYLOG_PLAYBACK: dict[int, str] = {
    4: "a known field of another wire type is kept as unknown; the chain of checksums tells it"
}

# Ends of logs in recoverylog_playback.json, by note, which a player of a broker meets otherwise.
RECOVERYLOG_TAILS: dict[str, str] = {
    "trailing garbage": "what begins no operation, up to the end of an append, is passed over"
}

# Fields of our own, by message. Others ignore them.
PROTOBUF_FIELDS: dict[str, dict[str, str]] = {
    "recoverylog.RecordedOp": {
        "content_checksum": "raw content of writes is checked, which no other checksum covers"
    }
}

# Tokens of auth.json which Gazette accepts and verification here refuses, by their notes.
REFUSED_TOKENS: dict[str, str] = {
    'payload {"cap":8,"exp":"EXP"}': "times of tokens are numbers, as RFC 7519 demands"
}

RECORDED_RENAMES = 1
"""Recorded renames of a file onto another of its paths. POSIX keeps both paths, so nothing is
recorded; the real recorder drops the former path, which the file still has."""
