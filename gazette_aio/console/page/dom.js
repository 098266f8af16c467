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
