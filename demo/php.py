#!/usr/bin/env python3
"""The demo of PHP: WordPress with MariaDB under php-fpm, behind `flatout serve DIR --php` and behind nginx, without a cache and with one.
It installs WordPress through flatout, logs in, writes an article, uploads a picture, and asks for what nobody may see.
`./x demo php` builds what it needs and calls it."""

import http.client, json, os, re, shutil, subprocess, sys, time, urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "demo"))
import children  # noqa: E402
from proxy import cpu_s, ready, start, wrk  # noqa: E402
from servers import free_port, program  # noqa: E402
from smoke import failed, sized  # noqa: E402

FLATOUT = program("flatout")
WORK = ROOT / "target/demo-php"
SITE = WORK / "site"
# Debian's package; its files belong to root, and the demo works on a copy.
WORDPRESS = Path("/usr/share/wordpress")
CHILDREN = 4
ROUNDS, SECONDS = sized(5, smoke=1), sized(3, smoke=1)
PASSWORD = "a-password-of-the-demo"
# What only people without an account and without a comment get from the cache.
CACHE = ["--cache", "10s", "--cache-bypass", "$http_cookie", "--cache-no-store", "$http_cookie"]
# 1 × 1, transparent.
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000000020001e221bc330000000049454e44ae426082"
)


def mariadb(log):
    """MariaDB with a folder and a socket of its own, and no port."""
    data = WORK / "mariadb"
    user = ["--user=root"] if os.getuid() == 0 else []
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db", *user]
    subprocess.run(install, stdout=log, stderr=log, check=True)
    command = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={WORK}/mariadb.sock", "--skip-networking", *user]
    process = start(command, log, WORK)
    for _ in range(200):
        if sql("SELECT 1", check=False).returncode == 0:
            return process
        if process.poll() is not None:
            sys.exit(f"MariaDB ended; see {WORK}/log")
        time.sleep(0.1)
    sys.exit(f"MariaDB does not respond; see {WORK}/log")


def sql(statement, check=True):
    command = ["mariadb", "--no-defaults", f"--socket={WORK}/mariadb.sock", "--user=root", "--batch", "--skip-column-names"]
    return subprocess.run(command, input=statement, capture_output=True, text=True, check=check)


def wordpress():
    """A copy of the files, with a configuration of its own."""
    shutil.copytree(WORDPRESS, SITE, ignore_dangling_symlinks=True, ignore=shutil.ignore_patterns("wp-config.php", "languages"))
    for folder in ("uploads", "upgrade"):
        (SITE / "wp-content" / folder).mkdir(parents=True, exist_ok=True)
    keys = ("AUTH_KEY", "SECURE_AUTH_KEY", "LOGGED_IN_KEY", "NONCE_KEY", "AUTH_SALT", "SECURE_AUTH_SALT", "LOGGED_IN_SALT", "NONCE_SALT")
    constants = {"DB_NAME": "wordpress", "DB_USER": "root", "DB_PASSWORD": "", "DB_HOST": f"localhost:{WORK}/mariadb.sock", "DB_CHARSET": "utf8mb4"}
    constants |= {key: os.urandom(32).hex() for key in keys}
    lines = [f"define('{name}', '{value}');" for name, value in constants.items()]
    # Nothing is fetched from elsewhere, and the site answers at any port.
    lines += ["define('WP_HTTP_BLOCK_EXTERNAL', true);", "define('AUTOMATIC_UPDATER_DISABLED', true);", "define('DISABLE_WP_CRON', true);"]
    lines += ["define('WP_HOME', 'http://' . $_SERVER['HTTP_HOST']);", "define('WP_SITEURL', WP_HOME);", "$table_prefix = 'wp_';"]
    lines += ["if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');", "require_once ABSPATH . 'wp-settings.php';"]
    (SITE / "wp-config.php").write_text("<?php\n" + "\n".join(lines) + "\n")
    (SITE / "wp-config.php.bak").write_text("<?php // SECRET\n")


def fpm(log):
    """php-fpm with a pool of its own, on a Unix socket."""
    pool = f"""[global]
error_log = {WORK}/fpm.log
daemonize = no
[www]
listen = {WORK}/fpm.sock
pm = static
pm.max_children = {CHILDREN}
php_admin_value[opcache.enable] = 1
"""
    as_root = os.getuid() == 0
    (WORK / "fpm.conf").write_text(pool + ("user = root\ngroup = root\n" if as_root else ""))
    binary = max(Path("/usr/sbin").glob("php-fpm*"))
    command = [str(binary), "--nodaemonize", "--fpm-config", f"{WORK}/fpm.conf"] + (["--allow-to-run-as-root"] if as_root else [])
    process = start(command, log, WORK)
    for _ in range(100):
        if (WORK / "fpm.sock").exists():
            return process
        time.sleep(0.1)
    sys.exit(f"php-fpm does not listen; see {WORK}/log")


def nginx(port):
    """As its documentation and WordPress' recommend; with a cache at the port that follows."""
    fastcgi = f"""fastcgi_pass unix:{WORK}/fpm.sock; fastcgi_keep_conn on;
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_param SCRIPT_NAME $fastcgi_script_name;
            fastcgi_param QUERY_STRING $query_string; fastcgi_param REQUEST_METHOD $request_method; fastcgi_param REQUEST_URI $request_uri;
            fastcgi_param CONTENT_TYPE $content_type; fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param HTTP_HOST $http_host;
            fastcgi_param SERVER_PROTOCOL $server_protocol; fastcgi_param DOCUMENT_ROOT $document_root; fastcgi_param SERVER_NAME localhost;
            fastcgi_param REMOTE_ADDR $remote_addr; fastcgi_param SERVER_PORT $server_port; fastcgi_param REDIRECT_STATUS 200;"""
    cache = """fastcgi_cache pages; fastcgi_cache_key $scheme$request_method$host$request_uri; fastcgi_cache_valid 200 10s;
            fastcgi_cache_bypass $http_cookie; fastcgi_no_cache $http_cookie; fastcgi_cache_lock on;"""
    servers = "".join(
        f"""server {{ listen 127.0.0.1:{port + at}; root {SITE}; index index.php;
        location / {{ try_files $uri $uri/ /index.php?$args; }}
        location ~ \\.php$ {{ try_files $uri =404; {fastcgi} {extra} }} }}\n"""
        for at, extra in enumerate(("", cache))
    )
    user = "user root;" if os.getuid() == 0 else ""
    conf = f"""{user} worker_processes 1; daemon off; pid {WORK}/nginx.pid; error_log {WORK}/nginx.log; events {{ worker_connections 1024; }}
http {{ include /etc/nginx/mime.types; access_log off; sendfile on; keepalive_requests 1000000;
fastcgi_cache_path {WORK}/nginx-cache keys_zone=pages:10m; {servers} }}"""
    (WORK / "nginx.conf").write_text(conf)
    return ["nginx", "-p", f"{WORK}/", "-c", f"{WORK}/nginx.conf", "-e", "stderr"]


class Browser:
    """A client that keeps cookies."""

    def __init__(self, port):
        self.host, self.cookies = f"127.0.0.1:{port}", {}

    def request(self, method, path, body=None, fields=()):
        fields = dict(fields)
        if self.cookies:
            fields["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if isinstance(body, dict):
            body, fields["Content-Type"] = urllib.parse.urlencode(body), "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, body, fields)
        response = connection.getresponse()
        content = response.read()
        for line in response.headers.get_all("Set-Cookie") or []:
            name, value = line.split(";")[0].split("=", 1)
            self.cookies[name] = value
        connection.close()
        return response, content


def expect(is_right, what, shown=b""):
    print(f"  {'ok' if is_right else 'FAILED':<7}{what}", flush=True)
    if not is_right:
        sys.exit(f"{what}: {shown[:2000]!r}")


def install(browser):
    form = {"weblog_title": "A site by flatout", "user_name": "ada", "admin_password": PASSWORD, "admin_password2": PASSWORD}
    form |= {"pw_weak": "on", "admin_email": "ada@example.org", "Submit": "Install WordPress", "language": ""}
    response, content = browser.request("POST", "/wp-admin/install.php?step=2", form)
    expect(response.status == 200 and b"Success" in content, "WordPress is installed by its own form", content)
    # Paths without a file; WordPress makes its rules for them anew.
    sql("USE wordpress; UPDATE wp_options SET option_value = '/%postname%/' WHERE option_name = 'permalink_structure'; "
        "UPDATE wp_options SET option_value = '' WHERE option_name = 'rewrite_rules';")


def use(browser):
    """What its users do."""
    response, content = browser.request("GET", "/")
    expect(response.status == 200 and b"A site by flatout" in content, "the front page", f"{response.status} {response.headers}".encode() + content)
    response, content = browser.request("GET", "/hello-world/")
    expect(response.status == 200 and b"Hello world!" in content, "an article at a path that is no file (front controller)", content)
    response, _ = browser.request("GET", "/no-such-article/")
    expect(response.status == 404, "404 of WordPress for an unknown path")
    response, _ = browser.request("GET", "/wp-admin")
    expect(response.status == 301, "a folder without its slash is redirected")
    response, content = browser.request("GET", "/wp-includes/css/dist/block-library/style.min.css")
    expect(response.status == 200 and response.headers["Content-Type"].startswith("text/css"), "a style sheet, as a file", content)
    browser.request("GET", "/wp-login.php")
    response, content = browser.request("POST", "/wp-login.php", {"log": "ada", "pwd": PASSWORD, "wp-submit": "Log In", "testcookie": "1"})
    expect(response.status == 302 and any(name.startswith("wordpress_logged_in") for name in browser.cookies), "log in", content)
    response, content = browser.request("GET", "/wp-admin/")
    expect(response.status == 200 and b"Dashboard" in content, "the dashboard", content)
    nonce = browser.request("GET", "/wp-admin/admin-ajax.php?action=rest-nonce")[1].decode()
    fields = {"X-WP-Nonce": nonce, "Content-Type": "application/json"}
    post = json.dumps({"title": "A second article", "content": "Written through flatout.", "status": "publish"})
    response, content = browser.request("POST", "/wp-json/wp/v2/posts", post, fields)
    expect(response.status == 201, "write an article (REST)", content)
    fields |= {"Content-Type": "image/png", "Content-Disposition": 'attachment; filename="dot.png"'}
    response, content = browser.request("POST", "/wp-json/wp/v2/media", PICTURE, fields)
    expect(response.status == 201, "upload a picture", content)
    picture = urllib.parse.urlsplit(json.loads(content)["source_url"]).path
    for _ in range(100):
        response, content = browser.request("GET", picture)
        if response.status == 200:
            break
        time.sleep(0.1)
    expect(content == PICTURE and response.headers["Content-Type"] == "image/png", "get the picture, as a file")


def hide(browser):
    """What nobody may see."""
    for path in ("/wp-config.php", "/wp-config.php.bak", "/wp-config.PHP", "/wp-config.php/", "/wp-config%2ephp", "/.htaccess", "/readme.html/x.php"):
        _, content = browser.request("GET", path)
        expect(b"<?php" not in content and b"DB_PASSWORD" not in content and b"SECRET" not in content, f"no source: {path}", content)


def cached(browser, visitor):
    first, second = visitor.request("GET", "/"), visitor.request("GET", "/")
    expect(second[0].headers["X-Cache-Status"] == "HIT" and first[1] == second[1], "a visitor gets the front page from the cache")
    response, content = browser.request("GET", "/")
    expect(response.headers["X-Cache-Status"] != "HIT" and b"wpadminbar" in content, "who is logged in gets an own page")
    expect(b"wpadminbar" not in visitor.request("GET", "/")[1], "and nobody else gets that")


def load(servers, fpm_process):
    rows = {}
    for _ in range(ROUNDS):
        for name, url, process in servers:
            before = cpu_s(process.pid) + cpu_s(fpm_process.pid)
            rate, p99, errors = wrk(url, connections=8, seconds=SECONDS)
            used = cpu_s(process.pid) + cpu_s(fpm_process.pid) - before
            rows.setdefault(name, []).append((rate, p99, used / max(rate * SECONDS, 1) * 1e6))
            if errors:
                failed(name, RuntimeError(errors))
    print(f"\nThe front page, 8 connections of wrk; medians of {ROUNDS} rounds in turn, {SECONDS} s each:\n")
    print("| server | requests/s | p99 ms | CPU µs per request, with PHP |\n|---|---:|---:|---:|")
    for name, runs in rows.items():
        rate, p99, used = (sorted(column)[len(runs) // 2] for column in zip(*runs))
        print(f"| {name} | {rate:,.0f} | {p99:.1f} | {used:,.0f} |")


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    started = []
    with open(WORK / "log", "wb") as log:
        try:
            print("MariaDB, WordPress, php-fpm", flush=True)
            started.append(mariadb(log))
            sql("CREATE DATABASE wordpress CHARACTER SET utf8mb4")
            wordpress()
            php = fpm(log)
            started.append(php)
            ports = [free_port(), free_port()]
            servers = []
            address = f"unix:{WORK}/fpm.sock"
            for name, port, more in (("flatout", ports[0], []), ("flatout with its cache", ports[1], CACHE)):
                command = [FLATOUT, "serve", str(SITE), "--php", address, "--port", str(port), "--workers", "1", *more]
                shown = ["flatout", "serve", "./wordpress", "--php", *(f"'{word}'" if "$" in word else word for word in more)]
                print(f"\n  {' '.join(shown)}\n", flush=True)
                started.append(start(command, log, WORK))
                ready([f"http://127.0.0.1:{port}/readme.html"], started[-1], WORK)
                servers.append((name, f"http://127.0.0.1:{port}/", started[-1]))
                browser = Browser(port)
                if not more:
                    install(browser)
                    use(browser)
                    hide(browser)
                else:
                    use(browser)
                    cached(browser, Browser(port))
            nginx_port = free_port()
            started.append(start(nginx(nginx_port), log, WORK))
            ready([f"http://127.0.0.1:{nginx_port}/"], started[-1], WORK)
            servers.append(("nginx", f"http://127.0.0.1:{nginx_port}/", started[-1]))
            servers.append(("nginx with its cache", f"http://127.0.0.1:{nginx_port + 1}/", started[-1]))
            load(servers, php)
        finally:
            for process in started[::-1]:
                children.stop(process)
    print(f"\nThe site stays in {WORK.relative_to(ROOT)}; its log is there too.")


if __name__ == "__main__":
    children.end_on_signals()
    main()
