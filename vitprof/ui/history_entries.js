// One entry in the browser's history for a page that was entered, not one without and one with its query.
// Where a page's query comes back from the server after the page was entered, Streamlit adds both entries if it sees
// them one after the other; Back would then stay on the page and lose its view.
if (!window.vitprofHistoryEntries) {
  window.vitprofHistoryEntries = true;
  const LONGEST_MS = 2000; // between the two
  const pushState = history.pushState.bind(history);
  let enteredAt = -Infinity;
  history.pushState = (state, title, url) => {
    const stays = new URL(url ?? "", location.href).pathname === location.pathname;
    if (stays && !location.search && performance.now() - enteredAt < LONGEST_MS) {
      history.replaceState(state, title, url);
      return;
    }
    if (!stays) enteredAt = performance.now();
    pushState(state, title, url);
  };
}
