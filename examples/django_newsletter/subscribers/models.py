"""Who reads the newsletter, and what was sent."""

from django.db import models


class Subscriber(models.Model):
    address = models.EmailField(unique=True)

    def __str__(self) -> str:
        return self.address


class Mail(models.Model):
    """A mail, which this example stores and does not send."""

    address = models.EmailField()
    subject = models.CharField(max_length=200)

    def __str__(self) -> str:
        return f"{self.subject} to {self.address}"
