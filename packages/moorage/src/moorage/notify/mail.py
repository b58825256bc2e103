"""Send an e-mail through the administrator's mail server."""

from __future__ import annotations

import asyncio
import hashlib
import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import TYPE_CHECKING

from moorage.decide.maps.notices import plain
from moorage.notify.delivery import NotDelivered
from moorage_kube.clock import SYSTEM

if TYPE_CHECKING:
    from moorage.decide.maps.notices import Notice
    from moorage.model.targets import Email
    from moorage.notify.outbound import MailServer, Outbound

SUBJECT_MAX = 200  # characters


async def mail(notice: Notice, target: Email, outbound: Outbound) -> None:
    """Raises NotDelivered. A cancelled try may still be carried out: smtplib has a separate thread."""
    server = outbound.mail
    if server is None:
        raise NotDelivered("mail server not set; the administrator sets MOORAGE_SMTP_URL", again=False)
    message = make_message(notice, target, server.sender)
    await asyncio.to_thread(_talk, message, server, outbound.seconds)


def make_message(notice: Notice, target: Email, sender: str) -> EmailMessage:
    """Build the message.

    Headers have no line breaks: addresses were checked, and the subject becomes a single line.
    """
    message = EmailMessage(policy=SMTP)
    domain = sender.rpartition("@")[2]
    message["From"] = sender
    message["To"] = ", ".join(target.to)
    message["Subject"] = plain(notice.title)[:SUBJECT_MAX]
    message["Date"] = format_datetime(SYSTEM.now())
    message["Message-ID"] = f"<{hashlib.sha256(notice.key.encode()).hexdigest()[:32]}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday notice answers it
    message.set_content(notice.text + "\n")
    return message


def _talk(message: EmailMessage, server: MailServer, seconds: float) -> None:
    where = f"mail server {server.host}"
    try:
        name = server.sender.rpartition("@")[2]
        context = ssl.create_default_context(cafile=server.ca_file) if server.security != "none" else None
        if server.security == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, local_hostname=name, timeout=seconds, context=context
            )
        else:
            smtp = smtplib.SMTP(server.host, server.port, local_hostname=name, timeout=seconds)
        with smtp:
            if server.security == "starttls":
                smtp.starttls(context=context)
            if server.user:
                smtp.login(server.user, server.password)
            refused = smtp.send_message(message)
    except smtplib.SMTPAuthenticationError as error:
        raise NotDelivered(
            f"{where} does not take the user and password ({error.smtp_code})", again=False
        ) from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        again = any(400 <= code < 500 for code in codes)
        raise NotDelivered(f"{where} takes none of the recipients ({codes[0]})", again=again) from None
    except smtplib.SMTPResponseException as error:
        again = 400 <= error.smtp_code < 500
        raise NotDelivered(f"{where} answered {error.smtp_code}", again=again) from None
    except ssl.SSLCertVerificationError:
        raise NotDelivered(f"{where} shows a certificate that is not trusted", again=False) from None
    except smtplib.SMTPNotSupportedError:
        raise NotDelivered(f"{where} does not offer {server.security} or a login", again=False) from None
    except (smtplib.SMTPException, OSError) as error:
        raise NotDelivered(f"{where} cannot be reached: {type(error).__name__}", again=True) from None
    if refused:  # delivered to the others; trying again would send those a second one
        codes = sorted({code for code, _ in refused.values()})
        raise NotDelivered(f"{where} does not take {len(refused)} of the recipients ({codes[0]})", again=False)
