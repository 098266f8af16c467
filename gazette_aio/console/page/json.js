// JSON as it's written: numbers keep their digits, members their order, and a cut document its
// beginning. Shown in one line, or as a tree whose branches fold.

import { element } from "./dom.js";

const TOKENS = /\s*(?:("(?:[^"\\]|\\.)*"?)|([[\]{}:,])|([^\s"[\]{}:,]+))/y;
const DEEP = 64;
const LONG = 24;
const KINDS = { true: "word", false: "word", null: "word" };

// Returns a value, or null for a text that isn't JSON. A value is a `text` with its `kind`, or has
// `entries` of keys and values between the brackets `open` and `close`.
export function parse(text) {
  const root = { entries: [] };
  const path = [root];
  let key = null;
  let at = 0;
  for (;;) {
    TOKENS.lastIndex = at;
    const found = TOKENS.exec(text);
    if (!found) break;
    at = TOKENS.lastIndex;
    const [, string, sign, other] = found;
    const inside = path.at(-1);
    if (sign === "}" || sign === "]") {
      if (inside.close !== sign) return null;
      path.pop();
    } else if (sign === ":") {
      const last = inside.close === "}" && key === null ? inside.entries.pop() : undefined;
      if (last === undefined) return null;
      key = last[1].text;
    } else if (sign !== ",") {
      const isOpening = sign !== undefined;
      const value = isOpening
        ? { open: sign, close: sign === "{" ? "}" : "]", entries: [] }
        : { text: string ?? other, kind: string ? "string" : (KINDS[other] ?? "digits") };
      inside.entries.push([key, value]);
      key = null;
      if (isOpening) path.push(value);
      if (path.length > DEEP) return null;
    }
  }
  const value = root.entries[0]?.[1];
  return value?.entries && root.entries.length === 1 ? value : null;
}

// The value without the member that a path leads to, and without parents that have no other.
export function without(value, [first, ...rest]) {
  if (!value.entries) return value;
  const entries = value.entries.flatMap(([key, member]) => {
    if (key !== JSON.stringify(first)) return [[key, member]];
    if (rest.length === 0) return [];
    const left = without(member, rest);
    return left.entries?.length === 0 ? [] : [[key, left]];
  });
  return { ...value, entries };
}

export function line(value) {
  if (!value.entries) return value.text;
  const members = value.entries.map(([key, member]) => (key ? `${key}: ` : "") + line(member));
  return value.open + members.join(", ") + value.close;
}

export function tree(value, key = null, isLast = true) {
  const name = key ? [element("span", { className: "key", textContent: key }), ": "] : [];
  const comma = isLast ? "" : ",";
  if (!value.entries) {
    const text = element("span", { className: value.kind, textContent: value.text });
    return element("div", {}, ...name, text, comma);
  }
  if (value.entries.length === 0) return element("div", {}, ...name, value.open + value.close + comma);
  const number = element("span", { className: "quiet", textContent: ` ${value.entries.length} …` });
  const last = value.entries.length - 1;
  return element(
    "details",
    { open: value.entries.length <= LONG },
    element("summary", {}, ...name, value.open, number),
    ...value.entries.map(([each, member], index) => tree(member, each, index === last)),
    element("div", { className: "close", textContent: value.close + comma }),
  );
}
