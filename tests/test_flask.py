"""Jobs of a Flask application run inside of its context."""

import asyncio
from typing import Any

import pytest
from flask import Flask, current_app, g
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from pulsed import Context
from pulsed.contrib.flask import FlaskPulse, current_pulse
from pulsed.errors import ConfigError
from tests.support.apps import working


@pytest.fixture
def flask_app(url):
    app = Flask("shop")
    app.config.update(PULSED_URL=url, GREETING="hello")
    return app


@pytest.fixture
def pulse():
    return FlaskPulse()


async def test_handlers_and_their_steps_have_the_context_of_the_application(pulse, flask_app):
    torn_down: list[Any] = []

    @flask_app.teardown_appcontext
    def tear_down(error):
        torn_down.append(g.name)

    @pulse.job
    def plain(name: str) -> str:
        g.name = name
        return f"{current_app.config['GREETING']} {name}"

    @pulse.job
    async def workflow(ctx: Context, name: str) -> str:
        g.name = name
        await asyncio.sleep(0)  # others run meanwhile, in contexts of their own

        def greet() -> str:
            return f"{current_app.config['GREETING']} {g.name}"

        return await ctx.step(greet)

    pulse.init_app(flask_app)
    async with pulse, working(pulse):
        jobs = [await each.aenqueue(name) for each in (plain, workflow) for name in ("ada", "bob")]
        results = [await job.aresult(60) for job in jobs]
    assert results == ["hello ada", "hello bob", "hello ada", "hello bob"]
    assert sorted(torn_down) == ["ada", "ada", "bob", "bob"]


def test_views_enqueue(pulse, flask_app):
    @pulse.job
    def greet(name: str) -> None: ...

    @flask_app.post("/greet/<name>")
    def view(name: str) -> str:
        assert current_pulse() is pulse
        return str(greet.enqueue(name).id)

    pulse.init_app(flask_app)
    with pulse:
        answer = flask_app.test_client().post("/greet/ada")
        assert pulse.jobs.get(answer.text).payload == {"name": "ada"}


@pytest.mark.embedded("a caller's own connection")
def test_a_view_enqueues_in_the_transaction_of_its_session(pulse, flask_app, url):
    """As with Flask-SQLAlchemy, whose ``db.session`` is a scoped session like this one."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    flask_app.teardown_appcontext(lambda _: session.remove())

    @pulse.job
    def greet(name: str) -> None: ...

    @flask_app.post("/orders/<item>")
    def order(item: str) -> str:
        session.execute(text("SELECT :item"), {"item": item})
        job = greet.using(conn=session).enqueue(item)
        if item == "none":
            raise LookupError(item)
        session.commit()
        return str(job.id)

    pulse.init_app(flask_app)
    with pulse:
        pulse.jobs.counts()
        client = flask_app.test_client()
        assert client.post("/orders/none").status_code == 500
        job_id = client.post("/orders/lamp").text
        assert [str(job.id) for job in pulse.jobs.list(limit=10)] == [job_id]


def test_the_url_of_the_app_is_kept(flask_app):
    pulse = FlaskPulse("sqlite:///own.db")
    pulse.init_app(flask_app)
    assert pulse.url == "sqlite:///own.db"


async def test_a_worker_without_an_application_says_so(pulse, url):
    @pulse.job(max_attempts=1)
    def greet() -> None: ...

    pulse.url = url
    async with pulse, working(pulse):
        job = await greet.aenqueue()
        with pytest.raises(Exception, match=r"call init_app\(flask_app\)"):
            await job.aresult(60)


def test_one_extension_has_one_application(pulse, flask_app):
    pulse.init_app(flask_app)
    pulse.init_app(flask_app)
    with pytest.raises(ConfigError, match="another application already"):
        pulse.init_app(Flask("other"))


def test_outside_of_an_application_there_is_no_extension(flask_app):
    with pytest.raises(ConfigError, match="no FlaskPulse here"):
        current_pulse()
    with flask_app.app_context(), pytest.raises(ConfigError, match="no FlaskPulse here"):
        current_pulse()
