// What axe-core does not look at: the words in charts, which are SVG, and the order of headings. Returns what is wrong.
() => {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
  const light = (c) => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const page = channels(getComputedStyle(document.querySelector(".stApp")).backgroundColor);
  const wrong = [];
  for (const text of document.querySelectorAll(".js-plotly-plot text")) {
    const style = getComputedStyle(text);
    if (!text.textContent.trim() || !text.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    // a bar's figure that has no room in it is outside, on the page
    const inside = !text.classList.contains("bartext-outside");
    const bar = inside ? text.closest(".point")?.querySelector("path") : null;
    const under = bar ? over(channels(getComputedStyle(bar).fill), page) : page;
    const ink = [...channels(style.fill).slice(0, 3), Number(style.fillOpacity) * Number(style.opacity)];
    const found = contrast(over(ink, under), under);
    if (found < 4.5) wrong.push(`words in a chart: "${text.textContent}" ${style.fill} on ${under}, ${found.toFixed(1)} to 1`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")]
    .filter((heading) => heading.checkVisibility())
    .map((heading) => Number(heading.tagName[1]));
  const skipped = levels.some((level, i) => level > (levels[i - 1] ?? 0) + 1);
  if (levels.filter((level) => level === 1).length !== 1 || skipped) wrong.push(`levels of headings: ${levels}`);
  return wrong;
}
