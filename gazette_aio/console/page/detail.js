// One journal: its facts, its fragments by store, its labels.

import { ask } from "./api.js";
import { cell, element, find, pairs } from "./dom.js";
import { bytes, grouped, time } from "./format.js";

export async function show(name, signal) {
  const detail = await ask("/api/journal", { query: { name }, signal });
  const { row } = detail;
  find("detail-name").textContent = row.name;
  pairs(find("facts"), [
    ["Write head", grouped(detail.head)],
    ["Covered by fragments", bytes(detail.covered)],
    ["Brokers", row.members.join(", ") || "none"],
    ["Replication", String(row.replication)],
    ["Fragments", `${bytes(detail.fragmentLength)}, ${detail.codec}`],
    ["Suspended", row.suspend.toLowerCase()],
    ["Revision", detail.revision],
  ]);
  find("stores").tBodies[0].replaceChildren(
    ...detail.stores.map((store) =>
      element(
        "tr",
        {},
        cell(store.store || "not stored yet"),
        cell(store.fragments.toLocaleString("en"), "number"),
        cell(bytes(store.contentBytes), "number"),
        cell(grouped(store.begin), "number"),
        cell(grouped(store.end), "number"),
        cell(time(store.newest)),
      ),
    ),
  );
  pairs(find("labels"), detail.labels.length ? detail.labels : [["none", ""]]);
  find("detail").hidden = false;
}
