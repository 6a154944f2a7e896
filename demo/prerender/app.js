// The application of the published article: React with react-router, and og tags for each page. Without a build step: what JSX would
// become is written as it is.
'use strict';

const { createElement: h, useEffect, useState } = React;
const { BrowserRouter, Link, Route, Routes, useParams } = ReactRouterDOM;

// What link previews and search engines read.
function describe({ title, description, status }) {
  document.title = title;
  const tags = { description, 'og:title': title, 'og:description': description, 'og:url': location.href, 'prerender-status-code': status };
  for (const [name, content] of Object.entries(tags)) {
    const key = name.startsWith('og:') ? 'property' : 'name';
    document.head.querySelector(`meta[${key}="${name}"]`)?.remove();
    if (!content) continue;
    const meta = document.createElement('meta');
    meta.setAttribute(key, name);
    meta.content = content;
    document.head.append(meta);
  }
}

function Articles() {
  useEffect(() => describe({ title: 'Articles', description: 'All articles.' }), []);
  return h('main', null, h('h1', null, 'Articles'), h(Link, { to: '/articles/1' }, 'the first one'));
}

function Article() {
  const { number } = useParams();
  const [article, setArticle] = useState(null);
  useEffect(() => {
    fetch(`/api/${number}.json`).then((response) => response.ok ? response.json() : { isMissing: true }).then(setArticle);
  }, [number]);
  useEffect(() => {
    if (article && !article.isMissing) describe({ title: article.title, description: article.text });
  }, [article]);
  if (!article) return h('p', null, 'Loading…');
  if (article.isMissing) return h(Missing);
  return h('article', null, h('h1', null, article.title), h('p', null, article.text), h(Link, { to: '/' }, 'all articles'));
}

function Missing() {
  useEffect(() => describe({ title: 'Nothing here', description: '', status: '404' }), []);
  return h('p', null, 'Nothing here');
}

ReactDOM.createRoot(document.getElementById('root')).render(h(BrowserRouter, null, h(Routes, null,
  h(Route, { path: '/', element: h(Articles) }),
  h(Route, { path: '/articles/:number', element: h(Article) }),
  h(Route, { path: '*', element: h(Missing) }))));
