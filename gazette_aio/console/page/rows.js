// Rows of the list: a journal, a folder, or one that is still asked for.

import { cell, element } from "./dom.js";
import { count, grouped, rate } from "./format.js";
import { headOf } from "./heads.js";
import { address } from "./path.js";

export const COLUMNS = 5;

export const keyOf = (row) => row?.folder ?? row?.name ?? "";

export function drawn(row, { index, chosen, folder, isCurrent }) {
  const made = element("tr", { ariaRowIndex: String(index + 2) });
  if (!row) {
    made.append(element("td", { colSpan: COLUMNS, textContent: "…" }));
    return made;
  }
  const key = keyOf(row);
  const link = element("a", { href: address(key) }, ...named(key, folder));
  link.dataset.key = key;
  link.tabIndex = isCurrent ? 0 : -1;
  if (key === chosen) {
    made.className = "chosen";
    link.setAttribute("aria-current", "true");
  }
  made.append(element("td", { title: key }, link), ...(row.folder ? folderCells(row) : cells(row)));
  return made;
}

// The folder in sight is in the path above the list, so it's left out of names.
function named(key, folder) {
  const rest = key.startsWith(folder) ? key.slice(folder.length) : key;
  const begin = rest.lastIndexOf("/", rest.length - 2) + 1;
  return [element("span", { className: "quiet", textContent: rest.slice(0, begin) }), rest.slice(begin)];
}

function folderCells(row) {
  const journals = row.journals === 1 ? "1 journal" : `${count(row.journals)} journals`;
  return [element("td", { className: "quiet", colSpan: COLUMNS - 1, textContent: journals })];
}

function cells(row) {
  const head = headOf(row.name);
  const state = row.suspend === "NONE" ? "" : ` · suspended: ${row.suspend.toLowerCase()}`;
  const isQuiet = !(head?.perSecond > 0);
  return [
    cell(head?.head ? grouped(head.head) : (head?.problem ?? ""), head?.problem ? "bad" : "number"),
    cell(head?.head ? rate(head.perSecond) : "", isQuiet ? "number quiet" : "number live"),
    cell((row.members.join(", ") || "none") + state, row.members.length ? "" : "bad"),
    cell(row.stores.join(", ") || "none", row.stores.length ? "" : "quiet"),
  ];
}
