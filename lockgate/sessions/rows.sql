-- The tables of sessions. Statements are separated by blank lines.

CREATE TABLE IF NOT EXISTS lockgate_messages (
    caller TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, seq BIGINT NOT NULL,
    role TEXT NOT NULL, text TEXT NOT NULL, label TEXT NOT NULL, topic TEXT NOT NULL, layer TEXT NOT NULL,
    confidence DOUBLE PRECISION, request_id TEXT NOT NULL, at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (caller, agent, session, seq))

CREATE UNIQUE INDEX IF NOT EXISTS lockgate_messages_request
    ON lockgate_messages (caller, agent, session, request_id, role) WHERE request_id <> ''

CREATE INDEX IF NOT EXISTS lockgate_messages_at ON lockgate_messages (at)

CREATE TABLE IF NOT EXISTS lockgate_aborted (
    entry TEXT PRIMARY KEY, caller TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL,
    question TEXT NOT NULL, delivered TEXT NOT NULL, reason TEXT NOT NULL, label TEXT NOT NULL,
    request_id TEXT NOT NULL, at DOUBLE PRECISION NOT NULL)

CREATE INDEX IF NOT EXISTS lockgate_aborted_session ON lockgate_aborted (caller, agent, session, at)

CREATE INDEX IF NOT EXISTS lockgate_aborted_at ON lockgate_aborted (at)
