// Live tail of a journal, while it's asked for. Content is inserted as text, never as markup.

import { events } from "./api.js";
import { find } from "./dom.js";

const KEPT = 64 * 1024;

let following = new AbortController();
let followed = "";

function stop() {
  following.abort();
  following = new AbortController();
  find("follow").textContent = "Follow";
  find("follow").setAttribute("aria-pressed", "false");
}

export function reset(name) {
  if (name === followed) return;
  followed = name;
  stop();
  find("tail").textContent = "";
}

export async function toggle() {
  if (find("follow").getAttribute("aria-pressed") === "true") {
    stop();
    return;
  }
  const { signal } = following;
  const view = find("tail");
  view.textContent = "";
  find("follow").textContent = "Stop";
  find("follow").setAttribute("aria-pressed", "true");
  try {
    for await (const { text } of events("/api/tail", { query: { name: followed }, signal })) {
      const atEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 8;
      view.textContent = (view.textContent + text).slice(-KEPT);
      if (atEnd) view.scrollTop = view.scrollHeight;
    }
  } finally {
    if (!signal.aborted) stop();
  }
}
