// Keys of the whole page, where nothing is being typed.

import { find } from "./dom.js";

const PAGE = 20;
const MOVES = {
  ArrowDown: 1,
  ArrowUp: -1,
  PageDown: PAGE,
  PageUp: -PAGE,
  Home: -Infinity,
  End: Infinity,
};

const isTyping = (target) => /^(input|textarea|select)$/i.test(target.tagName);

// Calls `move` by a number of rows, `up` to the folder above, and `close`.
export function listen({ move, up, close }) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (event.target.id !== "find" || !event.target.value) close();
      return;
    }
    if (isTyping(event.target)) {
      if (event.target.id === "text" && event.key === "ArrowDown") take(event, () => move(0));
      return;
    }
    if (event.key === "/") {
      take(event, () => find("text").focus());
      return;
    }
    // Rows that have gone leave the focus to the page.
    if (event.target !== document.body && !find("journals").contains(event.target)) return;
    if (event.key in MOVES) take(event, () => move(MOVES[event.key]));
    if (event.key === "ArrowLeft") take(event, up);
  });
}

function take(event, act) {
  event.preventDefault();
  act();
}
