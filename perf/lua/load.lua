-- What wrk runs: the path's GET, PIPELINE_DEPTH of them in one write, and a last line that a
-- program can read.

local depth = tonumber(os.getenv("PIPELINE_DEPTH") or "1")

-- Without a function of its own wrk sends one fixed request, which costs the load CPU less.
if depth > 1 then
   local burst

   init = function(args)
      burst = string.rep(wrk.format(), depth)
   end

   request = function()
      return burst
   end
end

done = function(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      "load: duration_us=%d requests=%d bytes=%d connect=%d read=%d write=%d status=%d timeout=%d\n",
      summary.duration, summary.requests, summary.bytes,
      errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
