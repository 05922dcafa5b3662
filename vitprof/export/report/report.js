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
      // A picture with words of its own has another form for a narrow page.
      const shown = (window.innerWidth < 760 && chart.layout.meta?.narrow) || chart;
      const layout = {...shown.layout, template: theme(dark, narrow), autosize: true};
      if (layout.height) document.getElementById("chart-" + number).style.height = layout.height + "px";
      if (narrow) layout.legend = {...layout.legend, font: {size: 10}};
      const config = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
      window.Plotly.react("chart-" + number, shown.data, layout, config);
    });
  };
  draw(wish.matches);
  wish.addEventListener("change", () => draw(wish.matches));
  window.addEventListener("beforeprint", () => draw(false));
  window.addEventListener("afterprint", () => draw(wish.matches));
})();
