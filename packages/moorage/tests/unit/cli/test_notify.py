from __future__ import annotations

from moorage.cli.main import main


def test_a_trial_notice_reaches_a_command(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["notify", f"command:tee {out}", "--text", "hello"]) == 0
    assert out.read_text() == "hello\n"
    assert capsys.readouterr().err == "command 'tee': delivered\n"


def test_a_target_that_got_nothing_is_told_and_fails(capsys, monkeypatch):
    monkeypatch.delenv("MOORAGE_SMTP_URL", raising=False)
    monkeypatch.delenv("MOORAGE_SMTP_FROM", raising=False)
    assert main(["notify", "mailto:ada@example.com", "command:true", "https://127.0.0.1/s3cret"]) == 1
    err = capsys.readouterr().err
    assert "e-mail to ada@example.com: mail server not set" in err
    assert "command 'true': delivered" in err
    assert "webhook at 127.0.0.1: 127.0.0.1 is not a public address" in err
    assert "error: 2 of 3 notifications were not delivered" in err
    assert "s3cret" not in err


def test_wrong_usage_is_refused_before_anything_is_sent(capsys):
    assert main(["notify", "slack"]) == 2
    assert main(["notify", "command:true", "--allow-private", "home"]) == 2
    assert "--allow-private: 'home'" in capsys.readouterr().err
