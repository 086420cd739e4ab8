// Elements of SVG and HTML with their attributes; text is always text, never markup.

export function svg(name, attributes, ...content) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, content);
}

export function html(name, attributes, ...content) {
  return filled(document.createElement(name), attributes, content);
}

function filled(element, attributes = {}, content = []) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...content.map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
