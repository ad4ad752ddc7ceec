"""One table, to see what a transaction leaves."""

from django.db import models


class Order(models.Model):
    """Something that was bought."""

    name = models.CharField(max_length=100)
    runs = models.IntegerField(default=0)
