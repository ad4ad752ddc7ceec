"""No pages."""

urlpatterns: list[object] = []
