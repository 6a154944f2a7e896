// The same application without React, where npm or its registry is not there.
'use strict';

const root = document.getElementById('root');
const tag = (property, content) => {
  const meta = document.createElement('meta');
  meta.setAttribute(property.startsWith('og:') ? 'property' : 'name', property);
  meta.content = content;
  document.head.append(meta);
};
const missing = () => { document.title = 'Nothing here'; tag('prerender-status-code', '404'); root.textContent = 'Nothing here'; };
const routes = [
  [/^\/articles\/(\d+)$/, async (number) => {
    const response = await fetch(`/api/${number}.json`);
    if (!response.ok) return missing();
    const article = await response.json();
    document.title = article.title;
    for (const [name, value] of Object.entries({ description: article.text, 'og:title': article.title, 'og:url': location.href })) tag(name, value);
    root.innerHTML = `<article><h1>${article.title}</h1><p>${article.text}</p></article>`;
  }],
  [/^\/$/, () => { document.title = 'Articles'; root.innerHTML = '<a href="/articles/1">the first one</a>'; }],
];
const found = routes.map(([pattern, draw]) => [location.pathname.match(pattern), draw]).find(([match]) => match);
found ? found[1](...found[0].slice(1)) : missing();
