// The search's worker, in front of the theme's own: it loads the index when one searches, and not before.
// The theme sends {type, data}: 0 sets up, 1 is our "ready", 2 asks, 3 is our answer (its source: search/worker/message).

const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const theme = self.location.search.slice(1); // the file name of the theme's worker
let setup = null; // the theme's message, until there are documents to go with it
let asked = null; // the last question while the index is on its way

self.addEventListener("message", (event) => {
  const { type, data } = event.data;
  if (type === SETUP && !setup) {
    setup = data;
    event.stopImmediatePropagation();
    postMessage({ type: READY });
  } else if (type === QUERY && (asked || !self.lunr)) {
    event.stopImmediatePropagation();
    if (!data.trim()) return postMessage({ type: RESULT, data: { items: [] } });
    if (!asked) load();
    asked = data;
  } else if (type === QUERY) {
    event.data.data = together(data);
  }
});

async function load() {
  const documents = await fetch(new URL("../search/documents.json", self.location));
  const docs = await documents.json();
  importScripts(new URL(`javascripts/workers/${theme}`, self.location)); // listens to messages from here on
  self.dispatchEvent(new MessageEvent("message", { data: { type: SETUP, data: { ...setup, docs } } }));
  await new Promise((done) => setTimeout(done)); // the theme's set-up has awaited its languages
  const last = asked;
  asked = null;
  self.dispatchEvent(new MessageEvent("message", { data: { type: QUERY, data: last } }));
}

/**
 * Of a name made of parts, split-K or make_composed_layout, every part must be found: the theme asks so for quotes. Of
 * another word it looks for what begins so; without a plural's s that finds both.
 */
function together(query) {
  const parts = new RegExp(setup.config.separator);
  return query
    .split(/\s+/)
    .map((word) => {
      const named = word.split(parts).filter(Boolean);
      if (/^["+~-]/.test(word)) return word;
      return named.length > 1 ? `"${named.join(" ")}"` : word.replace(/(?<=\w{3}[^s\W])s$/, "");
    })
    .join(" ");
}
