// Live tail of a journal, while it's asked for. Content is inserted as text, never as markup.

import { events } from "./api.js";
import { find } from "./dom.js";
import { add, clear } from "./feed.js";

const KEPT = 64 * 1024;
// Those whose messages the console can tell apart.
const FRAMED = ["application/x-ndjson", "application/x-protobuf-fixed", "text/csv"];

let following = new AbortController();
let followed = "";

const isPressed = () => find("follow").getAttribute("aria-pressed") === "true";
const form = () => find("form").value;

function press(on) {
  find("follow").textContent = on ? "Stop" : "Follow";
  find("follow").setAttribute("aria-pressed", String(on));
}

export function stop() {
  following.abort();
  following = new AbortController();
  press(false);
}

function showForm() {
  find("feed").hidden = find("counts").hidden = form() !== "messages";
  find("tail").hidden = form() !== "text";
}

export function reset(name) {
  if (name === followed) return;
  followed = name;
  stop();
  find("tail").textContent = "";
  clear();
}

export function suit(contentType) {
  const isFramed = FRAMED.includes(contentType);
  const option = find("form").options[0];
  if (option.disabled === isFramed) find("form").value = isFramed ? "messages" : "text";
  option.disabled = !isFramed;
  find("uuid").disabled = contentType !== FRAMED[0];
  showForm();
}

export async function toggle() {
  if (isPressed()) {
    stop();
    return;
  }
  const { signal } = following;
  const view = find("tail");
  view.textContent = "";
  clear();
  press(true);
  const query = { name: followed, form: form(), uuid: find("uuid").value.trim() };
  try {
    for await (const event of events("/api/tail", { query, signal })) {
      if (event.messages) {
        add(event);
        continue;
      }
      const isAtEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 8;
      view.textContent = (view.textContent + event.text).slice(-KEPT);
      if (isAtEnd) view.scrollTop = view.scrollHeight;
    }
  } finally {
    if (!signal.aborted) stop();
  }
}

// Calls `attempt` with the work of each command.
export function listen(attempt) {
  find("follow").addEventListener("click", () => attempt(toggle));
  for (const id of ["form", "uuid"]) {
    find(id).addEventListener("change", () => {
      const was = isPressed();
      stop();
      showForm();
      if (was) attempt(toggle);
    });
  }
}
