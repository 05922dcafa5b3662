"""The report's style, and the script that draws its charts: a constant, so that the security policy can name it."""

from __future__ import annotations

from vitprof.charts.style import COMPUTE, DATA_WAIT, IDLE, NEUTRAL

CSS = f"""
:root {{ --text: #1c1e21; --quiet: #5a6067; --back: #ffffff; --line: #d9dce0; --soft: #f4f5f6; --link: #0b5cad }}
@media (prefers-color-scheme: dark) {{ @media not print {{
:root {{ --text: #e8eaed; --quiet: #a9afb6; --back: #0e1117; --line: #363b44; --soft: #1a1e26; --link: #7db8f5 }} }} }}
body {{ margin: 0 auto; max-width: 1040px; padding: 16px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }}
h1 {{ font-size: 1.5rem; margin: .5em 0 0 }}
h2 {{ font-size: 1.25rem; margin: 2em 0 0; border-top: 1px solid var(--line); padding-top: 1em }}
h3 {{ font-size: 1.05rem; margin: 1.5em 0 .3em }}
h4 {{ font-size: .9rem; margin: .6em 0 .2em; color: var(--quiet) }}
a {{ color: var(--link) }}
.quiet {{ color: var(--quiet); margin: .3em 0; font-size: .9rem }}
.notice {{ background: var(--soft); border-left: 4px solid {NEUTRAL}; padding: .5em .8em }}
.badge {{ font-size: .8rem; font-weight: normal; border: 1px solid var(--line); border-radius: 1em;
  padding: .1em .7em }}
.verdict {{ border: 1px solid var(--line); border-left: 6px solid {NEUTRAL}; border-radius: 6px; padding: .2em 1em;
  margin: 1em 0 }}
.verdict.idle {{ border-left-color: {IDLE} }}
.verdict.wait {{ border-left-color: {DATA_WAIT} }}
.verdict.compute {{ border-left-color: {COMPUTE} }}
.verdict ol, .verdict ul {{ margin: .3em 0; padding-left: 1.4em }}
figure {{ margin: 1.5em 0 .5em }}
.chart {{ display: none }}
.drawn .chart {{ display: block }}
.wide {{ overflow-x: auto; margin: 1em 0 .3em }}
table {{ border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; font-variant-numeric: tabular-nums }}
caption {{ text-align: left; font-weight: 600; padding-bottom: .3em }}
th, td {{ text-align: left; padding: .25em 1.2em .25em 0; border-bottom: 1px solid var(--line); vertical-align: top }}
th {{ font-weight: normal }}
.n {{ white-space: nowrap }}
@media (max-width: 600px) {{ th, td {{ padding-right: .7em }} }}
thead th {{ color: var(--quiet) }}
tbody th {{ overflow-wrap: anywhere; min-width: 8em }}
.lists {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: 0 2em; font-size: .9rem }}
dl {{ display: grid; grid-template-columns: minmax(6em, auto) 1fr; gap: 0 1em; margin: 0 }}
dt {{ color: var(--quiet) }}
dd {{ margin: 0 }}
@media print {{ body {{ max-width: none; padding: 0; font-size: 11px }} .modebar-container {{ display: none }}
  figure, tr, .verdict {{ break-inside: avoid }} .wide {{ overflow: visible }} }}
"""

SCRIPT = """
(async () => {
  const say = (text) => {
    const line = document.getElementById("no-charts");
    line.textContent = text + " Every figure is also in a table.";
    line.hidden = false;
  };
  const charts = JSON.parse(document.getElementById("charts").textContent);
  if (!charts.length) return;
  if (!window.DecompressionStream) {
    say("This browser cannot unpack the charts; Chrome 80, Firefox 113, Safari 16.4 and later can.");
    return;
  }
  try {
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  } catch (error) {
    say("The charts could not be unpacked: " + error.message + ".");
    return;
  }
  if (!window.Plotly) {
    say("The charts could not be unpacked: this file is damaged.");
    return;
  }
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = (dark, narrow) => {
    const axis = {gridcolor: dark ? "#363b44" : "#e3e5e8", linecolor: dark ? "#5a6067" : "#b5bac0", automargin: true};
    const font = {color: dark ? "#e8eaed" : "#1c1e21", size: narrow ? 10 : 12, family: "system-ui, sans-serif"};
    const clear = "rgba(0,0,0,0)";
    const hoverlabel = {bgcolor: dark ? "#1a1e26" : "#ffffff", font};
    return {layout: {font, hoverlabel, paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis}};
  };
  const draw = (dark) => {
    document.body.classList.add("drawn");
    charts.forEach((chart, number) => {
      const narrow = window.innerWidth < 600;
      const layout = {...chart.layout, template: theme(dark, narrow), autosize: true};
      if (narrow) layout.legend = {...layout.legend, font: {size: 10}};
      const config = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
      window.Plotly.react("chart-" + number, chart.data, layout, config);
    });
  };
  draw(wish.matches);
  wish.addEventListener("change", () => draw(wish.matches));
  window.addEventListener("beforeprint", () => draw(false));
  window.addEventListener("afterprint", () => draw(wish.matches));
})();
"""
