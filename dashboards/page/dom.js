// Elements, made and replaced.

const made = new WeakMap();

export function element(name, className, text) {
  const created = document.createElement(name);
  if (className) created.className = className;
  if (text !== undefined) created.textContent = text;
  return created;
}

// Leaves what reads the same in place: a selection and a screen reader's position live longer than a second.
export function replaceIfChanged(parent, children) {
  const text = children.map((child) => child.outerHTML).join("");
  if (made.get(parent) !== text) {
    made.set(parent, text);
    parent.replaceChildren(...children);
  }
}
