#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""What the suites need beside Debian's installed packages: tests that are in source packages only, or not in main.

    debian.py [--cached]    fetches and builds all of it (scripts/install-deps.sh --suites); --cached: says by its status whether it is there

Everything is unpacked under ${XDG_CACHE_HOME:-~/.cache}/libvkrdma/suites, once; a folder with VERSION in it is complete. apt runs
with lists and settings of its own: no root is needed, and the machine's packages and configuration stay as they are.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

CACHE = os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'libvkrdma', 'suites')
PYTHON = '/usr/bin/python3'  # Debian's: its test suite belongs to it
KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
HERE = os.path.dirname(os.path.abspath(__file__))


class Unavailable(Exception):
    pass


def output(*command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options)


def os_codename():
    with open('/etc/os-release') as f:
        return dict(line.strip().split('=', 1) for line in f if '=' in line).get('VERSION_CODENAME', '')


class Apt:
    """Source packages of this machine's suite and of sid, and the binary packages of its suite in main and non-free."""

    def __init__(self):
        self.work = os.path.join(CACHE, 'apt')
        self.options = ['-q', '-o', 'Dir::Etc::sourcelist=/dev/null', '-o', f'Dir::Etc::sourceparts={self.work}/etc', '-o',
                        f'Dir::State::lists={self.work}/lists', '-o', f'Dir::Cache={self.work}/cache', '-o',
                        'APT::Sandbox::User=root', '-o', 'Acquire::Retries=3', '-o', 'Acquire::Languages=none']
        self.read = False

    def lists(self):
        if self.read:
            return
        code = os_codename()
        for d in ('etc', 'lists/partial', 'cache/archives/partial'):
            os.makedirs(os.path.join(self.work, d), exist_ok=True)
        # The archive is the one that serves this machine's own packages.
        uris = re.findall(r'^Repo-URI: (\S+)', output('apt-get', 'indextargets', 'Created-By: Packages', f'Codename: {code}',
                                                      'Component: main').stdout, re.M)
        base = uris[0] if uris else 'http://deb.debian.org/debian'
        signed = f'Signed-By: {KEYRING}\n' if os.path.exists(KEYRING) else ''
        with open(f'{self.work}/etc/suites.sources', 'w') as f:
            f.write(f'Types: deb-src\nURIs: {base}\nSuites: {code} sid\nComponents: main\n{signed}\n'
                    f'Types: deb\nURIs: {base}\nSuites: {code}\nComponents: main non-free\n{signed}')
        print("reading the lists of Debian's packages", file=sys.stderr, flush=True)
        p = output('apt-get', *self.options, 'update')
        if p.returncode:
            raise Unavailable(f'the lists of packages could not be had: {p.stderr.strip()[-200:]}')
        self.read = True

    def source(self, name, into):
        """The newest version that is to be had, unpacked as into/source; returns the version."""
        self.lists()
        shown = output('apt-cache', *self.options, 'showsrc', '--only-source', name).stdout
        versions = sorted(set(re.findall(r'^Version: (\S+)', shown, re.M)), reverse=True,
                          key=lambda v: [int(n) for n in re.findall(r'\d+', v)])
        for how in ((), ('--tar-only',)):  # without Debian's changes where those are not to be had
            for version in versions:
                fetched, to = os.path.join(into, 'fetched'), os.path.join(into, 'source')
                shutil.rmtree(fetched, ignore_errors=True)
                os.makedirs(fetched)
                if output('apt-get', *self.options, 'source', '--download-only', *how, f'{name}={version}', cwd=fetched).returncode:
                    continue
                if how:
                    tar = [t for t in glob.glob(f'{fetched}/*.orig.tar.*') if not t.endswith('.asc')][0]
                    os.makedirs(to)
                    subprocess.run(['tar', '-xf', tar, '-C', to, '--strip-components=1'], check=True)
                else:  # apt has checked it
                    subprocess.run(['dpkg-source', '--no-check', '-x', glob.glob(f'{fetched}/*.dsc')[0], to], check=True,
                                   capture_output=True)
                shutil.rmtree(fetched)
                return version
        raise Unavailable(f'the source of {name} could not be had')

    def package(self, name, into):
        """Fetches a binary package; returns its file and its version."""
        self.lists()
        p = output('apt-get', *self.options, 'download', name, cwd=into)
        found = glob.glob(f'{into}/{name}_*.deb')
        if p.returncode or not found:
            raise Unavailable(f'the package {name} could not be had: {p.stderr.strip()[-200:]}')
        return found[0], output('dpkg-deb', '-f', found[0], 'Version').stdout.strip()


apt = Apt()
THINGS = {}


def python_version():
    return output(PYTHON, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])').stdout.strip()


def place(name):
    """Python's tests are of one version of it; of the others the newest is taken once, and kept."""
    return os.path.join(CACHE, f'{name}-{python_version()}' if name == 'cpython' else name)


def thing(name):
    """Notes a function that makes something in an empty folder and returns its version."""
    def note(make):
        def folder():
            dest = place(name)
            if os.path.exists(os.path.join(dest, 'VERSION')):
                return dest
            os.makedirs(CACHE, exist_ok=True)
            work = tempfile.mkdtemp(prefix=f'{name}.', dir=CACHE)
            try:
                print(f'fetching {name}', file=sys.stderr, flush=True)
                version = make(work)
                with open(os.path.join(work, 'VERSION'), 'w') as f:
                    f.write(version + '\n')
                shutil.rmtree(dest, ignore_errors=True)
                os.rename(work, dest)
            except (subprocess.CalledProcessError, OSError, IndexError) as e:
                raise Unavailable(f'{name}: {e}') from e
            finally:
                shutil.rmtree(work, ignore_errors=True)
            return dest
        THINGS[name] = folder
        return folder
    return note


def version_of(name):
    with open(os.path.join(place(name), 'VERSION')) as f:
        return f.read().strip()


def edit(path, old, new):
    with open(path) as f:
        text, n = re.subn(old, new, f.read())
    if not n:
        raise Unavailable(f'{path} has no {old}')
    with open(path, 'w') as f:
        f.write(text)


@thing('cpython')
def cpython(work):
    """Python's tests, of the installed interpreter's version: Debian's package of them, and what is installed of them."""
    version = python_version()
    deb, full = apt.package(f'libpython{version}-testsuite', work)
    subprocess.run(['dpkg', '-x', deb, f'{work}/package'], check=True)
    for base in (f'/usr/lib/python{version}', f'{work}/package/usr/lib/python{version}'):
        shutil.copytree(f'{base}/test', f'{work}/test', dirs_exist_ok=True)
    shutil.rmtree(f'{work}/package')
    os.remove(deb)
    return full


@thing('redis-py')
def redis_py(work):
    return apt.source('python-redis', work)


@thing('hiredis')
def hiredis(work):
    version = apt.source('hiredis', work)
    subprocess.run(['make', '-C', f'{work}/source', 'TEST_ASYNC=1', 'hiredis-test'], check=True, capture_output=True)
    return version


@thing('netperf')
def netperf(work):
    deb, version = apt.package('netperf', work)  # non-free in Debian 12, for its old licence
    subprocess.run(['dpkg', '-x', deb, f'{work}/root'], check=True)
    os.remove(deb)
    return version


@thing('epoll-wakeup')
def epoll_wakeup(work):
    """The kernel's own test of epoll; where it makes a socket pair it is given a TCP connection."""
    shown = output('apt-cache', 'depends', 'linux-source').stdout
    name = (re.findall(r'Depends: (linux-source-\S+)', shown) or ['linux-source'])[0]
    deb, version = apt.package(name, work)
    files = ['*/selftests/filesystems/epoll/epoll_wakeup_test.c', '*/selftests/kselftest_harness.h', '*/selftests/kselftest.h']
    quoted = ' '.join(f"'{f}'" for f in files)
    subprocess.run(['bash', '-c', f'set -o pipefail; dpkg-deb --fsys-tarfile {deb} | tar -x --to-stdout --wildcards '
                    f"'./usr/src/linux-source-*.tar.xz' | tar -xJ -C {work} --strip-components=1 --wildcards {quoted}"], check=True)
    os.remove(deb)
    at = f'{work}/tools/testing/selftests/filesystems/epoll'
    # A thread of each test uses the test's context until the process has ended: on the stack that is a race with exit.
    edit(f'{at}/epoll_wakeup_test.c', r'\n\tstruct epoll_mtcontext ctx = { 0 };', '\n\tstatic struct epoll_mtcontext ctx;')
    edit(f'{at}/../../kselftest_harness.h', r'(TEST_TIMEOUT_DEFAULT) 30\b', r'\1 120')  # some of them spin, and machines are busy
    subprocess.run(['gcc', '-O2', '-pthread', '-w', '-include', f'{HERE}/tcp_pair.h', f'-I{at}/../..', '-o', f'{work}/epoll_wakeup_test',
                    f'{at}/epoll_wakeup_test.c'], check=True, capture_output=True)
    return version


def main():
    if '--cached' in sys.argv:
        return 0 if all(os.path.exists(os.path.join(place(name), 'VERSION')) for name in THINGS) else 1
    bad = 0
    for name, folder in THINGS.items():
        try:
            folder()
        except Unavailable as e:
            bad = 1
            print(f'{name}: {e}', file=sys.stderr)
    return bad


if __name__ == '__main__':
    sys.exit(main())
