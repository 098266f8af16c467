// Elements. Names and content of journals are inserted as text, never as markup.

export const find = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export const cell = (text, className = "") =>
  element("td", { className, title: text, textContent: text });

export function pairs(list, entries) {
  list.replaceChildren(
    ...entries.flatMap(([term, text]) => [
      element("dt", { textContent: term }),
      element("dd", { textContent: text }),
    ]),
  );
}

// A live region that is set to the same text again is read out again.
export function say(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}

const problems = new Map(); // By names of repeated work; that of the latest command has none.

function put(name, text) {
  problems.delete(name);
  if (text) problems.set(name, text);
  const latest = [...problems.values()].at(-1);
  if (latest) say("problem", latest);
  find("problem").hidden = !latest;
}

export function complain(error, name = "") {
  if (error.name !== "AbortError") put(name, error.message);
}

// Drop the problem of the latest command, as the user goes on, or that of repeated work.
export const forgive = (name = "") => put(name, "");

// Do some work, and show why it failed: until the next command or, of repeated work, until it's done.
// Returns whether it was done.
export async function attempt(work, name = "") {
  if (!name) forgive();
  try {
    await work();
    if (name) forgive(name);
    return true;
  } catch (error) {
    complain(error, name);
    return false;
  }
}

// Pages of plain HTTP have no clipboard, but for what is copied by a command.
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const put = (event) => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
  };
  document.addEventListener("copy", put, { once: true });
  document.execCommand("copy");
}
