"""Artifacts in stores other than our own: raw text, HTTP, git, and buckets by fsspec.

The fields are Argo's: https://argo-workflows.readthedocs.io/en/latest/fields/#artifactlocation
A Secret's key is written as {"secret": N}; its value is in the variable MOORAGE_SECRET_N.
"""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moorage_workflows.executor.errors import Missing, Passing, StepError
from moorage_workflows.executor.folders import names_below, sum_of
from moorage_workflows.executor.web import fetch, send

# errors of boto and Google
_WITHOUT_KEYS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
GIT_SECONDS = 3600  # for one clone
_ADDRESSING = {"": "", "path": "path", "virtual-hosted": "virtual"}  # Argo's word → botocore's
_GIT_PROTOCOLS = "file:git:http:https:ssh"


class Stores:
    """Reads and writes artifacts in stores.

    `env`: the variables of this process, including secrets. `tmp`: a folder for keys and clones.
    """

    def __init__(self, env: Mapping[str, str], tmp: Path) -> None:
        self._env = env
        self._tmp = tmp

    def read(self, location: Mapping[str, Any], into: Path) -> bool:
        """Write the artifact to `into`. Returns True for a folder that needs no unpacking. Raises StepError."""
        ((kind, store),) = location.items()
        match kind:
            case "raw":
                into.write_text(str(store.get("data") or ""), encoding="utf-8")
            case "http":
                fetch(*self._http(store, "GET"), into)
            case "git":
                self._clone(store, into)
                return True
            case "s3" | "gcs":
                return self._download(kind, store, into)
            case _:
                raise StepError(f"the store {kind!r} is not known: use s3, gcs, http, git or raw")
        return False

    def write(self, location: Mapping[str, Any], file: Path, *, below: str = "") -> str:
        """Write a file to its location. Returns its version, "" if the store has no versions.

        `below`: the file is one of a folder, with this name. A version is a string that changes with every
        write. Raises StepError.
        """
        ((kind, store),) = location.items()
        match kind:
            case "http":
                send(*self._http(store, "PUT"), file)
                return ""
            case "s3" | "gcs":
                path = f"{store['bucket']}/{store['key']}"
                path = f"{path.rstrip('/')}/{below}" if below else path

                def put(files: Any) -> str:
                    if kind == "s3" and store.get("createBucketIfNotPresent") is not None:
                        _make_bucket(files, str(store["bucket"]), store)
                    files.put_file(str(file), path)
                    return _version(files, path)

                return str(self._bucket(kind, store, path, put))
            case _:
                raise StepError(f"the store {kind!r} cannot be written: use s3, gcs or http")

    def delete(self, location: Mapping[str, Any], version: str, *, is_folder: bool = False) -> bool:
        """Delete an artifact of a bucket, if it still has this version; return whether it was deleted. Raises
        StepError.

        A missing artifact is not an error, and a newer one stays; of a folder, all files stay if one is newer.
        """
        ((kind, store),) = location.items()
        if kind not in ("s3", "gcs"):
            raise StepError(f"artifacts in the store {kind!r} cannot be deleted: use s3 or gcs")
        path = f"{store['bucket']}/{store['key']}"

        def work(files: Any) -> bool:
            if is_folder:
                return _delete_folder(files, path.rstrip("/"), version)
            if not files.isfile(path) or not version or _version(files, path) != version:
                return False
            files.rm_file(path)
            return True

        return bool(self._bucket(kind, store, path, work))

    def keys(self, location: Mapping[str, Any]) -> list[str]:
        """Return the keys of the files below the location's key in a bucket, as Argo lists them.

        Raises StepError.
        """
        ((kind, store),) = location.items()
        if kind not in ("s3", "gcs"):
            raise StepError(f"the store {kind!r} cannot be listed: use s3 or gcs")
        bucket = str(store["bucket"])
        path = f"{bucket}/{str(store.get('key') or '').strip('/')}".rstrip("/")

        def work(files: Any) -> list[str]:
            try:
                listed = files.find(path)
            except FileNotFoundError:
                return []
            names = [str(name).removeprefix(f"{bucket}/") for name in listed if str(name) != path]
            return [name for name in names if not name.endswith("/")]

        return list(self._bucket(kind, store, path, work))

    def _secret(self, store: Mapping[str, Any], field: str) -> str:
        """Return the value of a Secret's key; "" if the field is not set.

        Raises StepError if the value is missing.
        """
        selector = store.get(field)
        if not selector:
            return ""
        name = f"MOORAGE_SECRET_{selector['secret']}"
        if name not in self._env:
            raise StepError(f"the Secret of {field} is missing")
        return self._env[name]

    def _http(self, store: Mapping[str, Any], method: str) -> tuple[urllib.request.Request, ssl.SSLContext | None]:
        """Return the request and the TLS context with its client certificate; None without a certificate."""
        url = str(store["url"])
        if not url.startswith(("http://", "https://")):
            raise StepError(f"the URL {url!r} must begin with http:// or https://")
        request = urllib.request.Request(url, method=method)
        for header in store.get("headers") or ():
            request.add_header(header["name"], str(header.get("value") or ""))
        auth = store.get("auth") or {}
        if basic := auth.get("basicAuth"):
            name, password = self._secret(basic, "usernameSecret"), self._secret(basic, "passwordSecret")
            request.add_header("Authorization", _basic(name, password))
        if client := auth.get("oauth2"):
            request.add_header("Authorization", f"Bearer {self._token(client)}")
        certificate = auth.get("clientCert")
        return request, self._certificate(certificate) if certificate else None

    def _certificate(self, client: Mapping[str, Any]) -> ssl.SSLContext:
        context = ssl.create_default_context()
        files = []
        for field in ("clientCertSecret", "clientKeySecret"):
            file = self._tmp / f"http-{field}.pem"
            file.touch(mode=0o600)
            file.write_text(self._secret(client, field))
            files.append(str(file))
        try:
            context.load_cert_chain(*files)
        except (OSError, ValueError) as error:
            raise StepError(f"http.auth.clientCert: no certificate with its key, in PEM: {error}") from error
        return context

    def _token(self, client: Mapping[str, Any]) -> str:
        """Return a token of the grant `client_credentials`. https://www.rfc-editor.org/rfc/rfc6749#section-4.4"""
        fields = [("grant_type", "client_credentials")]
        if scopes := client.get("scopes"):
            fields.append(("scope", " ".join(str(scope) for scope in scopes)))
        fields += [(str(each["key"]), str(each.get("value") or "")) for each in client.get("endpointParams") or ()]
        url = self._secret(client, "tokenURLSecret").strip()
        if not url.startswith(("http://", "https://")):
            raise StepError("http.auth.oauth2.tokenURLSecret: the URL must begin with http:// or https://")
        name, password = self._secret(client, "clientIDSecret"), self._secret(client, "clientSecretSecret")
        request = urllib.request.Request(url, data=urllib.parse.urlencode(fields).encode(), method="POST")
        request.add_header(
            "Authorization", _basic(urllib.parse.quote_plus(name), urllib.parse.quote_plus(password))
        )
        answer = self._tmp / "http-token.json"
        try:
            fetch(request, None, answer)
            return str(json.loads(answer.read_text())["access_token"])
        except (ValueError, KeyError, TypeError) as error:
            raise StepError(f"{url} did not answer with an access_token") from error
        finally:
            answer.unlink(missing_ok=True)

    # buckets

    def _download(self, kind: str, store: Mapping[str, Any], into: Path) -> bool:
        named = f"{store['bucket']}/{store['key']}"
        path = named.rstrip("/")

        def work(files: Any) -> bool:
            if path == named and files.isfile(path):
                files.get_file(path, str(into))
                return False
            below = names_below(files.find(path), path)
            if not below:
                raise Missing(f"{kind}://{path} does not exist")
            for inner in below:
                if any(part in ("", ".", "..") for part in inner.split("/")):
                    raise StepError(f"{kind}://{path}/{inner} cannot be a file: its name leads out of the folder")
                target = into / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                files.get_file(f"{path}/{inner}", str(target))
            return True

        return bool(self._bucket(kind, store, path, work))

    def _bucket(self, kind: str, store: Mapping[str, Any], path: str, work: Callable[[Any], Any]) -> Any:
        """Call `work` with the file system of a bucket. Its errors become StepError or Passing."""
        try:
            import fsspec

            options = self._s3(store) if kind == "s3" else self._gcs(store)
            files = fsspec.filesystem(kind, skip_instance_cache=True, **options)
        except ImportError as error:
            package = {"s3": "s3fs", "gcs": "gcsfs"}[kind]
            raise StepError(
                f"{kind} artifacts need the Python package {package}, which is not installed"
            ) from error
        try:
            return work(files)
        except StepError:
            raise
        except FileNotFoundError as error:
            raise Missing(f"{kind}://{path} does not exist") from error
        except PermissionError as error:
            raise StepError(f"{kind}://{path} may not be used with the keys given: {error}") from error
        except Exception as error:  # each package has its own errors
            if type(error).__name__ in _WITHOUT_KEYS:
                raise StepError(
                    f"{kind}://{path} needs keys, and there are none: name a Secret with them in the artifact, or"
                    f" give the service account a role of the cloud ({error})"
                ) from error
            raise Passing(f"{kind}://{path} failed: {type(error).__name__}: {error}") from error

    def _s3(self, store: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of s3fs. Without keys it uses those of the machine or the service account."""
        client: dict[str, Any] = {}
        if store.get("endpoint"):
            scheme = "http" if store.get("insecure") else "https"
            client["endpoint_url"] = f"{scheme}://{store['endpoint']}"
        if store.get("region"):
            client["region_name"] = store["region"]
        if authority := self._secret(store, "caSecret"):
            file = self._tmp / "s3-ca.pem"
            file.write_text(authority)
            client["verify"] = str(file)
        style = _ADDRESSING.get(str(store.get("addressingStyle") or ""))
        if style is None:
            raise StepError(f"s3.addressingStyle is {store['addressingStyle']!r}: use path or virtual-hosted")
        keys: dict[str, str | None] = {
            "key": self._secret(store, "accessKeySecret") or None,
            "secret": self._secret(store, "secretKeySecret") or None,
            "token": self._secret(store, "sessionTokenSecret") or None,
        }
        if role := str(store.get("roleARN") or ""):
            keys = _keys_of_role(role, keys, str(store.get("region") or "us-east-1"))
        return {
            **keys,
            "client_kwargs": client,
            **({"s3_additional_kwargs": more} if (more := _encryption(store)) else {}),
            **({"config_kwargs": {"s3": {"addressing_style": style}}} if style else {}),
        }

    def _gcs(self, store: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of gcsfs. Without a key it uses the account of the machine."""
        text = self._secret(store, "serviceAccountKeySecret")
        if not text:
            return {}
        try:
            return {"token": json.loads(text)}
        except ValueError as error:
            raise StepError("the Secret of serviceAccountKeySecret is not the JSON key of an account") from error

    # git

    def _clone(self, store: Mapping[str, Any], into: Path) -> None:
        """Clone the repository; check out the revision if there is one."""
        git = shutil.which("git")
        if git is None:
            raise StepError(
                "git artifacts need the program git, which this image of Moorage does not have: build one that has"
                " it, or fetch an archive over http"
            )
        env, repo = self._git_environment(store), str(store["repo"])
        words = [git, "clone", "--quiet"]
        if store.get("depth"):
            words += [f"--depth={int(store['depth'])}"]
        if store.get("singleBranch"):
            words += ["--single-branch"]
        if store.get("branch"):
            words += [f"--branch={store['branch']}"]
        shutil.rmtree(into, ignore_errors=True)
        self._git([*words, "--", repo, str(into)], env, repo, may_pass=True)
        within = [git, "-C", str(into)]
        for reference in store.get("fetch") or ():
            depth = [f"--depth={int(store['depth'])}"] if store.get("depth") else []
            command = [*within, "fetch", "--quiet", *depth, "origin", "--", str(reference)]
            self._git(command, env, repo, may_pass=True)
        if revision := store.get("revision"):
            if str(revision).startswith("-"):
                raise StepError(f"the revision {revision!r} of {repo} is not a name")
            try:
                self._git([*within, "checkout", "--quiet", str(revision), "--"], env, repo)
            except StepError:
                # not in the clone: a shallow clone has one branch
                self._git([*within, "fetch", "--quiet", "origin", "--", str(revision)], env, repo)
                self._git([*within, "checkout", "--quiet", "FETCH_HEAD", "--"], env, repo)
        if not store.get("disableSubmodules"):
            self._git(
                [*within, "submodule", "update", "--quiet", "--init", "--recursive"], env, repo, may_pass=True
            )

    def _git_environment(self, store: Mapping[str, Any]) -> dict[str, str]:
        env = {name: self._env[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in self._env}
        env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": _GIT_PROTOCOLS, "GIT_CONFIG_NOSYSTEM": "1"}
        if store.get("insecureSkipTLS"):
            env["GIT_SSL_NO_VERIFY"] = "1"
        user, password = self._secret(store, "usernameSecret"), self._secret(store, "passwordSecret")
        if user or password:
            asking = self._tmp / "git-askpass"
            asking.write_text('#!/bin/sh\ncase $1 in User*) echo "$GIT_USER" ;; *) echo "$GIT_PASSWORD" ;; esac\n')
            asking.chmod(0o700)
            env |= {"GIT_ASKPASS": str(asking), "GIT_USER": user, "GIT_PASSWORD": password}
        if key := self._secret(store, "sshPrivateKeySecret"):
            file = self._tmp / "git-key"
            file.touch(mode=0o600)
            file.write_text(key.rstrip("\n") + "\n")
            strict = "no" if store.get("insecureIgnoreHostKey") else "accept-new"
            env["GIT_SSH_COMMAND"] = f"ssh -i {file} -o IdentitiesOnly=yes -o StrictHostKeyChecking={strict}"
        return env

    def _git(self, words: list[str], env: Mapping[str, str], repo: str, *, may_pass: bool = False) -> None:
        try:
            done = subprocess.run(
                words,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Passing(f"git did not end within {GIT_SECONDS} s for {repo}") from error
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace").strip()
            message = f"git {words[1] if words[1] != '-C' else words[3]} failed for {repo}: {text[-400:]}"
            passing = may_pass and any(
                sign in text.lower() for sign in ("could not resolve", "timed out", "refused")
            )
            raise Passing(message) if passing else StepError(message)


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _keys_of_role(role: str, keys: Mapping[str, str | None], region: str) -> dict[str, str | None]:
    """Return keys of a role, valid for an hour.

    They are requested with `keys`, else with the machine's or account's keys.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session

    try:
        client = Session().create_client(
            "sts",
            region_name=region,
            aws_access_key_id=keys["key"],
            aws_secret_access_key=keys["secret"],
            aws_session_token=keys["token"],
        )
        given = client.assume_role(RoleArn=role, RoleSessionName="moorage-workflow")["Credentials"]
    except ClientError as error:
        raise StepError(f"the role {role} cannot be taken: {error}") from error
    except BotoCoreError as error:
        raise Passing(f"the role {role} cannot be asked for: {error}") from error
    return {"key": given["AccessKeyId"], "secret": given["SecretAccessKey"], "token": given["SessionToken"]}


def _encryption(store: Mapping[str, Any]) -> dict[str, str]:
    """The encryption settings for writes to the bucket, in the words of its API."""
    options = store.get("encryptionOptions") or {}
    if options.get("serverSideCustomerKeySecret"):
        raise StepError("s3.encryptionOptions.serverSideCustomerKeySecret is not supported")
    if not options.get("enableEncryption"):
        return {}
    if not (key := str(options.get("kmsKeyId") or "")):
        return {"ServerSideEncryption": "AES256"}
    words = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    if context := str(options.get("kmsEncryptionContext") or ""):
        words["SSEKMSEncryptionContext"] = base64.b64encode(context.encode()).decode()
    return words


def _make_bucket(files: Any, bucket: str, store: Mapping[str, Any]) -> None:
    """Create the bucket if it does not exist."""
    if files.exists(bucket):
        return
    words: dict[str, Any] = {}
    if (region := str(store.get("region") or "")) not in ("", "us-east-1"):
        words["CreateBucketConfiguration"] = {"LocationConstraint": region}
    if (store["createBucketIfNotPresent"] or {}).get("objectLocking"):
        words["ObjectLockEnabledForBucket"] = True
    try:
        files.call_s3("create_bucket", Bucket=bucket, **words)
    except Exception:  # of any class of the client: it is raised again unless the bucket is there
        files.invalidate_cache()
        if not files.exists(bucket):  # else another step made it at the same time
            raise
    files.invalidate_cache()


def _delete_folder(files: Any, path: str, version: str) -> bool:
    names = names_below(files.find(path), path)
    if not version or sum_of({name: _version(files, f"{path}/{name}") for name in names}) != version:
        return False
    for name in names:
        files.rm_file(f"{path}/{name}")
    return True


def _version(files: Any, path: str) -> str:
    """The version of an object as the bucket reports it; another write changes it."""
    files.invalidate_cache()
    info = files.info(path)
    if info.get("generation"):  # of Google Cloud Storage
        return f"generation {info['generation']}"
    return f"{info.get('VersionId') or ''} {info.get('ETag') or ''} {info.get('LastModified') or ''}".strip()
