#!/usr/bin/env python3
"""The demo of pages for crawlers: an application that draws its articles in the browser, with a router and og tags for each page. What a
person, a link preview and a model get; then how long a first render and a hit take, and how many pages a minute are drawn.
`./x demo prerender [ARTICLES]` builds what it needs and calls it."""

import json, re, shutil, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

from proxy import FLATOUT, ROOT, children, free_port, ready, sized, start
from smoke import IS_SMOKE

WORK = ROOT / "target/demo-prerender"
SOURCE = ROOT / "demo/prerender"
ARTICLES = sized(60, smoke=4)
PAGES = 2
PERSON = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
PREVIEW = "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)"
MODEL = "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko); compatible; GPTBot/1.2; +https://openai.com/gptbot"

# What the application runs with, from npm's registry, as scripts that browsers take as they are: nothing is built or bundled.
PACKAGES = ["react@18.3.1", "react-dom@18.3.1", "react-router-dom@6.28.2"]
MODULES = ROOT / "target/demo-prerender-npm"
LIBRARIES = {
    "react.js": "react/umd/react.production.min.js",
    "react-dom.js": "react-dom/umd/react-dom.production.min.js",
    "router.js": "@remix-run/router/dist/router.umd.min.js",
    "react-router.js": "react-router/dist/umd/react-router.production.min.js",
    "react-router-dom.js": "react-router-dom/dist/umd/react-router-dom.production.min.js",
}


def libraries(folder):
    """Copies React and react-router, which npm fetches once. Returns whether they are here; a smoke run fetches nothing."""
    paths = {name: MODULES / "node_modules" / path for name, path in LIBRARIES.items()}
    if not all(path.exists() for path in paths.values()) and shutil.which("npm") and not IS_SMOKE:
        MODULES.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(MODULES), *PACKAGES]
        subprocess.run(command, stdin=subprocess.DEVNULL)
    if not all(path.exists() for path in paths.values()):
        return False
    folder.mkdir(parents=True)
    for name, path in paths.items():
        shutil.copyfile(path, folder / name)
    return True


def application(folder, articles):
    """The application of `demo/prerender`. Returns what it is made with."""
    (folder / "api").mkdir(parents=True)
    page = (SOURCE / "index.html").read_text()
    has_react = libraries(folder / "lib")
    if not has_react:
        page = re.sub(r'  <script src="/lib/.*\n', "", page)
    (folder / "index.html").write_text(page)
    shutil.copyfile(SOURCE / ("app.js" if has_react else "plain.js"), folder / "app.js")
    for number in range(1, articles + 1):
        article = {"title": f"Article {number}", "text": f"What article {number} is about."}
        (folder / f"api/{number}.json").write_text(json.dumps(article))
    return "React and react-router" if has_react else "plain JavaScript: npm's registry was not asked, or has no React"


def get(url, agent):
    """Status, X-Prerender, X-Cache-Status, body, and seconds."""
    began = time.time()
    command = ["curl", "-sSi", "--max-time", "120", "-A", agent, "-H", "Accept: text/html,*/*;q=0.8", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds = time.time() - began
    head, body = re.split("\r?\n\r?\n", text, maxsplit=1)
    field = lambda name: (re.search(rf"^{name}: (.*?)\r?$", head, re.M | re.I) or [None, ""])[1]
    return head.split()[1], field("X-Prerender"), field("X-Cache-Status"), body, seconds


def expect(what, is_so):
    if not is_so:
        sys.exit(f"demo prerender: {what}; see {WORK}/log")


def show(url):
    for name, agent in [("a person", PERSON), ("a link preview", PREVIEW), ("a model", MODEL)]:
        status, mark, cache, body, _ = get(url, agent)
        title = re.search("<title>(.*?)</title>", body)[1]
        has_text = "What article 1 is about." in body
        print(f"  {name:<15} {status}  title {title:<12} text {'yes' if has_text else 'no':<4} X-Prerender {mark or '-':<9} cache {cache or '-'}")
        expect(f"{name} got the wrong page", has_text == (agent != PERSON))


def main():
    words = [word for word in sys.argv[1:] if word != "--smoke"]
    articles = int(words[0]) if words else ARTICLES
    shutil.rmtree(WORK, ignore_errors=True)
    made_with = application(WORK / "app", articles)
    print(f"an application with {made_with}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with open(WORK / "log", "wb") as log:
        command = [FLATOUT, "serve", str(WORK / "app"), "--spa", "--prerender", "--prerender-page-time", "60s", "--port", str(port)]
        command += ["--prerender-client-budget", "off"]
        server = start(command + ["--prerender-pages", str(PAGES)], log, WORK)
        try:
            ready([url], server, WORK)
            print("the same URL, as seen by")
            show(f"{url}/articles/1")
            status, *_ = get(f"{url}/articles/999999", PREVIEW)
            print(f"  a page that is none: {status}")
            expect("a missing article is 404", status == "404")
            urls = [f"{url}/articles/{number}" for number in range(2, articles + 1)]
            began = time.time()
            with ThreadPoolExecutor(PAGES) as threads:
                renders = list(threads.map(lambda url: get(url, PREVIEW), urls))
            took = time.time() - began
            expect("pages were not drawn", all(mark == "rendered" for _, mark, *_ in renders))
            hits = [get(url, MODEL) for url in urls]
            expect("pages were not stored", all(cache == "HIT" for _, _, cache, *_ in hits))
            ms = lambda runs, share: sorted(run[4] for run in runs)[int((len(runs) - 1) * share)] * 1000
            print(f"\n{len(urls)} pages, {PAGES} at a time: {len(urls) / took * 60:,.0f} renders a minute")
            print(f"  a first render  p50 {ms(renders, 0.5):,.0f} ms  p99 {ms(renders, 0.99):,.0f} ms")
            print(f"  a hit           p50 {ms(hits, 0.5):,.0f} ms  p99 {ms(hits, 0.99):,.0f} ms, curl's own start included")
        finally:
            children.stop(server)


if __name__ == "__main__":
    children.end_on_signals()
    main()
