"""nginx in front of the server: sites come in, and nobody else gets to Flower's control interface.

Flower's SuperLink has one port for sites (/v1/fleet/) and for commands (/v1/control/), which ask for no key.
"""

from pathlib import Path

CONFIGURATION, FOLDER = "nginx.conf", "nginx"  # in the server's folder


def configuration(server: Path, host: str, port: int, proxy_port: int) -> str:
    """Complete, for `nginx -c`. `server` is the server's folder, `port` the SuperLink's on this machine. What
    nginx writes lies in that folder, so that it needs no rights but those of the folder's owner."""
    server = server.resolve()
    own = server / FOLDER
    # all that nginx is built with wants a folder of its own, used or not
    spare = "\n".join(
        f'    {kind}_temp_path "{own}/{kind}";'
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""# Start it as the owner of this folder, beside 'fedgela federation server'; Ctrl-C ends it:
#
#     nginx -c "{server / CONFIGURATION}"
#
# It serves the sites whose site.toml says server = "{host}:{proxy_port}".

daemon off;
worker_processes 1;
pid "{own}/nginx.pid";
error_log "{own}/error.log";

events {{}}

http {{
    # every site asks for messages twice a second, which would fill the disk: that is told only where it fails
    map "$uri $status" $told {{
        "/v1/fleet/pull-messages 200" 0;
        default 1;
    }}
    access_log "{own}/access.log" combined if=$told;
{spare}

    server {{
        listen {proxy_port} ssl;
        ssl_certificate "{server}/server.crt";
        ssl_certificate_key "{server}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;
        server_tokens off;
        client_max_body_size 0;

        # what sites need; the path is passed on as nginx understood it, so that no other can hide in it
        location /v1/fleet/ {{
            proxy_pass https://127.0.0.1:{port}/v1/fleet/;
            proxy_ssl_trusted_certificate "{server}/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}

        # among all else, the commands that run code on every site
        location / {{
            return 403;
        }}
    }}
}}
"""
