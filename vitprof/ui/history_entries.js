// Keeps entries out of the browser's history that lead nowhere, so that one press of Back leads one step back.
if (!window.vitprofHistoryEntries) {
  window.vitprofHistoryEntries = true;
  // Parameters that say what a page shows. Another setting in the sidebar is no place to go back to.
  const SHOWN = ["run", "runs", "baseline", "tournament"];
  const TOGETHER_MS = 5000;
  const push = history.pushState.bind(history);
  const shown = (url) => SHOWN.map((name) => url.searchParams.get(name) ?? "").join("|");
  let added = null; // what was added last, and when
  history.pushState = (state, unused, address) => {
    const from = new URL(location.href);
    const to = new URL(address ?? from, from);
    const isSamePage = to.pathname === from.pathname;
    const isSettingsAlone = isSamePage && shown(to) === shown(from);
    // Compare shows the runs of before where its address names none, and would name these again.
    const isFirstChoice = isSamePage && to.pathname.endsWith("/compare") && !from.searchParams.get("runs");
    // Of a page that is opened with a query (st.switch_page) Streamlit makes two entries: the first one has the new query
    // and the page that is left.
    const isSecond = !isSamePage && added?.address === from.href && to.search === from.search
      && performance.now() - added.at < TOGETHER_MS;
    if (isSettingsAlone || isFirstChoice || isSecond) {
      history.replaceState(state, unused, address);
      added = null;
      return;
    }
    push(state, unused, address);
    added = isSamePage ? { address: location.href, at: performance.now() } : null;
  };
}
