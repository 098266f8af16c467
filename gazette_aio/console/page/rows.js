// Rows of the list: a journal, a folder, or one that is still asked for.

import { cell, element } from "./dom.js";
import { bytes, count, grouped, rate } from "./format.js";
import { headOf } from "./heads.js";
import { address } from "./path.js";

export const COLUMNS = 6;

const SHAPES = { served: "●", short: "◐", unserved: "✕", suspended: "○" };
const WORDS = { short: "short of replicas" };

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
  const number = row.folder ? element("span", { className: "quiet", textContent: journals(row) }) : "";
  made.append(element("td", { title: key }, link, number), ...cells(row));
  return made;
}

const journals = (row) => (row.journals === 1 ? "1 journal" : `${count(row.journals)} journals`);

// Numbers of journals by their health, the worst first.
export function healthOf(numbers) {
  const states = Object.keys(SHAPES).filter((state) => numbers[state]).reverse();
  const isAlone = states.length === 1;
  return (states.length ? states : ["served"]).map((state) => {
    const word = WORDS[state] ?? state;
    const text = isAlone && numbers[state] === 1 ? word : `${isAlone ? "all" : count(numbers[state] ?? 0)} ${word}`;
    return element("span", { className: `state ${state}`, textContent: `${SHAPES[state]} ${text}` });
  });
}

// The folder in sight is in the path above the list, so it's left out of names.
function named(key, folder) {
  const rest = key.startsWith(folder) ? key.slice(folder.length) : key;
  const begin = rest.lastIndexOf("/", rest.length - 2) + 1;
  return [element("span", { className: "quiet", textContent: rest.slice(0, begin) }), rest.slice(begin)];
}

function cells(row) {
  const head = headOf(keyOf(row));
  const isQuiet = !(head?.perSecond > 0);
  const written = cell(head?.head ? bytes(head.head) : (head?.problem ?? ""), head?.problem ? "quiet" : "number");
  if (head?.head) written.title = `${grouped(head.head)} bytes`;
  const brokers = row.folder ? row.brokers.map(([name]) => name) : row.members;
  const partly = row.suspend === "PARTIAL" ? " · partly suspended" : "";
  return [
    written,
    cell(head?.head ? rate(head.perSecond) : "", isQuiet ? "number quiet" : "number live"),
    element("td", {}, ...spaced(healthOf(row.folder ? row.health : { [row.health]: 1 })), partly),
    row.folder && brokers.length > 1
      ? Object.assign(cell(`${brokers.length} brokers`, "wide"), { title: brokers.join(", ") })
      : cell(brokers.join(", ") || "none", brokers.length ? "wide" : "wide bad"),
    cell(row.stores.join(", ") || "none", row.stores.length ? "wide" : "wide quiet"),
  ];
}

const spaced = (parts) => parts.flatMap((part, index) => (index ? [" ", part] : [part]));
