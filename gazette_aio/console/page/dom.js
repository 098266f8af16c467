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

export function complain(error) {
  if (error.name === "AbortError") return;
  say("problem", error.message);
  find("problem").hidden = false;
}

// Do some work, and show why it failed. Returns whether it was done.
export async function attempt(work) {
  try {
    await work();
    find("problem").hidden = true;
    return true;
  } catch (error) {
    complain(error);
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
