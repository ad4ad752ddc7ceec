"""Jobs in Django's admin: a list with filters and a search, one job, retry and cancel.

The rows come from the store, not from a model, so that they are the same on every database and
behind a server. It shows no payloads and no results: the dashboard (``with_dashboard``) does, as
far as its redaction lets it. This needs nothing but Django.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from pulsed.client.job import Job
from pulsed.client.operator import acting_as
from pulsed.client.search import parse
from pulsed.contrib.django.current import project_app
from pulsed.contrib.django.models import JobAccess
from pulsed.errors import InvalidOption, JobNotFound, PulsedError
from pulsed.handler.options import checked_id
from pulsed.model.audit import Operator
from pulsed.model.job import Status
from pulsed.model.lifecycle import LIVING, REPLAYABLE
from pulsed.model.page import Page
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted

PAGE = 50
SEE, OPERATE, ADMINISTER = (
    f"pulsed.{name}" for name in ("view_jobs", "operate_jobs", "administer_jobs")
)


@admin.register(JobAccess)
class JobAdmin(admin.ModelAdmin):
    """The pages of jobs; who may see and use them is decided by the permissions of ``pulsed``."""

    def get_urls(self) -> list[URLPattern]:
        """Return the list of jobs and the page of one job."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="pulsed_jobaccess_changelist"),
            path("<uuid:job_id>/", view(self.job_view), name="pulsed_jobaccess_change"),
        ]

    # -- permissions ----------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may see jobs."""
        del obj
        return any(request.user.has_perm(each) for each in (SEE, OPERATE, ADMINISTER))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the index of the admin shows jobs to the user."""
        return self.has_view_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the user may retry and cancel jobs."""
        del obj
        return any(request.user.has_perm(each) for each in (OPERATE, ADMINISTER))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Jobs are enqueued by code, or in the dashboard."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Jobs are removed by retention, or in the dashboard."""
        del request, obj
        return False

    # -- pages ----------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """List jobs, newest first, or act on those that are ticked."""
        del extra_context
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            ticked = request.POST.getlist("_selected_action")[:PAGE]
            self._act(request, request.POST.get("action", ""), ticked)
            return HttpResponseRedirect(request.get_full_path())
        return self._page(request, "jobs.html", "Jobs", **_listed(request))

    def job_view(self, request: HttpRequest, job_id: Any) -> HttpResponse:
        """Show one job, or act on it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        app = project_app()
        if request.method == "POST":
            self._act(request, request.POST.get("action", ""), [str(job_id)])
            return HttpResponseRedirect(request.path)
        try:
            job = app.jobs.get(job_id)
        except JobNotFound:
            raise Http404(f"There is no job {job_id}.") from None
        return self._page(
            request,
            "job.html",
            f"Job {job.id}",
            job=job,
            reasons=app.jobs.why(job.id),
            failures=app.jobs.failures(job.id),
            can_retry=job.status in REPLAYABLE,
            can_cancel=job.status in LIVING and not job.row.is_cancelling,
        )

    def _page(
        self, request: HttpRequest, template: str, title: str, **context: Any
    ) -> HttpResponse:
        given = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "may_act": self.has_change_permission(request),
            "list_url": reverse("admin:pulsed_jobaccess_changelist"),
            **context,
        }
        return TemplateResponse(request, f"admin/pulsed/{template}", given)

    # -- acts -----------------------------------------------------------------------------------

    def _act(self, request: HttpRequest, action: str, ids: list[str]) -> None:
        """Retry or cancel jobs, and tell how that went; each job is a transaction of its own."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        act = _acts().get(action)
        if act is None or not ids:
            messages.warning(request, "Tick jobs, and choose what to do with them.")
            return
        done, refused = 0, []
        for given in ids:
            try:
                with acting_as(Operator(request.user.get_username(), "operator")):
                    act(checked_id(given))
                done += 1
            except PulsedError as error:
                refused.append(str(error))
        if done:
            messages.success(request, f"{counted(done, 'job')}: {action}.")
        for why in refused[:5]:
            messages.error(request, why)


def _acts() -> dict[str, Callable[[Any], Status]]:
    jobs = project_app().jobs
    return {"retry": jobs.retry, "cancel": jobs.cancel}


def _listed(request: HttpRequest) -> dict[str, Any]:
    """Return a page of the jobs that match the search, and the links around it."""
    app = project_app()
    text, status = request.GET.get("q", ""), request.GET.get("status", "")
    known = [each.value for each in Status]
    chosen = f"{text} status:{status}" if status in known else text
    search = parse(chosen, datetime.now(UTC))
    if search.where.payload:
        search = search.without("Payloads can be searched in the dashboard.", payload=())
    jobs: Page[Job[Any]] = Page()
    if not search.problems:
        before = _cursor(request)
        rows = run_blocking(app.store.list_jobs(search.where, limit=PAGE, before=before))
        jobs = Page(map(app.jobs.of_row, rows), next=rows.next, is_cut=rows.is_cut)
    return {
        "jobs": jobs,
        "q": text,
        "status": status if status in known else "",
        "statuses": known,
        "problems": search.problems,
        "next": _link(q=text, status=status, before=jobs.next) if jobs.next else "",
    }


def _cursor(request: HttpRequest) -> Any:
    try:
        return checked_id(request.GET["before"])
    except (KeyError, InvalidOption):
        return None


def _link(**query: Any) -> str:
    return "?" + urlencode({name: str(value) for name, value in query.items() if value})
